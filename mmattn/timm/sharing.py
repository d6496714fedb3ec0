"""Models as folders of the Hugging Face Hub: weights, config.json and a card."""

import re
import tempfile
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote

import timm
from huggingface_hub import HfApi
from timm.models._hub import save_config_for_hf

from ..errors import CheckpointError, InputError, describe
from ..publishing import checkpoints_in, share
from ..weights import first_names
from ..weights.downloads import from_hub
from ..weights.licenses import licenses_of
from .config_json import check_saved, forms, read_config

Model = TypeVar('Model', bound='SharedModel')
#: arguments of huggingface_hub's functions, now or earlier, that have no meaning for a model
OF_HUB = set('endpoint etag_timeout headers local_dir proxies repo_type resume_download use_auth_token'.split())
CODE = """import timm
import mmattn.timm

model = timm.create_model('hf-hub:OWNER/NAME', pretrained=True)
model = mmattn.timm.TimmClassifier.from_pretrained('hf-hub:OWNER/NAME')"""
#: arguments of ``create_model`` that say what is loaded into a model, and not what it is
OF_LOADING = ('init_cfg', 'pretrained_strict', 'pretrained_filter_fn')
#: the end of a sentence on a model that no folder can describe
ALONE = 'Its weights alone are written by torch.save(model.state_dict(), FILE)'


class SharedModel:
    """The part of a model of timm that writes it to a folder or to the Hub, and reads it again."""

    @classmethod
    def from_pretrained(
        cls: type[Model],
        name: str | Path,
        *,
        revision: str | None = None,
        subfolder: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
        **arguments,
    ) -> Model:
        """A model that ``save_pretrained`` or ``push_to_hub`` wrote, in evaluation mode.

        Args:
            name: folder, or hf-hub:OWNER/NAME[@REVISION] on the Hub, for which OWNER/NAME is enough.
            revision: branch, tag or commit on the Hub, or a pull request, as ``refs/pr/1``.
            subfolder: the part of the folder or repository that has the model.
            token, cache_dir, force_download, local_files_only: of huggingface_hub. A folder needs no token and no
                ``cache_dir``.
            arguments: of ``timm.create_model``, ``features_only`` among them, instead of those in config.json. With
                another ``num_classes``, the classifier starts untrained.

        Raises:
            CheckpointError: if there is no such model, the Hub cannot be reached, config.json cannot be read, or
                tensors do not fit.
            ValueError: if an argument is wrong.
        """
        if refused := sorted(arguments.keys() & OF_HUB):
            raise ValueError(
                f'from_pretrained does not take {", ".join(refused)}: of huggingface_hub it takes revision, subfolder, '
                'token, cache_dir, force_download and local_files_only. A proxy is set by HTTPS_PROXY'
            )
        folder, subfolder = Path(name).expanduser(), (subfolder or '').strip('/')
        if local := folder.is_dir():
            if revision or force_download:
                raise ValueError(f'{name} is a folder: revision and force_download are for models on the Hub')
            config = folder / subfolder / 'config.json'
            if not config.is_file():
                raise CheckpointError(
                    f'{name} has no config.json, which save_pretrained writes: its weights alone are read by '
                    'pretrained_cfg_overlay=dict(file=...) of timm.create_model'
                )
        else:
            name, _, named = re.sub(r'^(hf[-_]hub:|hf://)', '', str(name)).partition('@')
            if not re.fullmatch(r'[\w.-]+/[\w.-]+', name):
                raise CheckpointError(f'there is no folder {name}, and names on the Hub are OWNER/NAME')
            revision = revision or unquote(named)
            address = '/'.join(
                filter(None, (f'hf://{name}' + (revision and f'@{quote(revision, safe="")}'), subfolder))
            )
            options = dict(
                token=token, cache_dir=cache_dir, force_download=force_download, local_files_only=local_files_only
            )
            config = from_hub(f'{address}/config.json', **options)
        architecture, saved, pretrained_cfg = read_config(config.read_bytes(), f'config.json of {name}')
        from .names import variants  # whose models are of a subclass

        if architecture not in variants():
            raise CheckpointError(f'config.json of {name} is of {architecture[:100]}, which is no model of mmattn')
        check_saved(variants()[architecture][0].backbone, saved, pretrained_cfg, f'config.json of {name}')
        folder = config.parent if local else from_hub(f'{address}/', **options).parent
        return timm.create_model(f'local-dir:{folder}', pretrained=True, **arguments).eval()

    def save_pretrained(
        self, save_directory: str | Path, *, license: str | None = None, data: str = 'not given'
    ) -> None:
        """Write a folder, or nothing: weights, with the settings that they do not show, timm's config.json, and a card.
        A card that is there stays.

        Args:
            license: of the weights, as the Hub names it, such as 'apache-2.0'. It may be left out if that of all
                weights that ``init_cfg`` of the backbone names is known.
            data: what the model was trained on, and the terms of the data, for the card.

        Raises:
            InputError: if ``from_pretrained`` could not build the model again, the folder cannot be written, or the
                license is not known.
        """

        def contents() -> tuple:
            config = self._config()
            settings = ', '.join(f'{key}={value!r}' for key, value in self.backbone.settings.items())
            card = dict(
                name=self.pretrained_cfg['architecture'],
                task='image-classification' if self.num_classes else 'image-feature-extraction',
                tag='timm',
                backbone=type(self.backbone).__name__,
                origin=f' for timm, images of {self.pretrained_cfg["input_size"][1]} pixels',
                code=CODE,
                more=f'Settings: {settings}.\n\n',
                data=data,
            )
            tensors = {name: value.contiguous() for name, value in self.state_dict().items()}
            return tensors, (dict(backbone=self.backbone.settings_note),), config, card

        starts = licenses_of(checkpoints_in(self.backbone.init_cfg))
        share(Path(save_directory), 'config.json', contents, license, starts, keep_card=True)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        license: str | None = None,
        data: str = 'not given',
        private: bool | None = None,
        token: str | None = None,
        branch: str | None = None,
        **options,
    ) -> str:
        """Upload the folder that :meth:`save_pretrained` writes, in one commit.

        Args:
            license, data: see :meth:`save_pretrained`.
            private, token: of huggingface_hub's ``HfApi.create_repo``, which makes the repository if there is none.
            branch, options: of its ``upload_folder``, such as ``commit_message`` and ``create_pr``.

        Returns:
            the address of the commit.

        Raises:
            InputError: of :meth:`save_pretrained`; then no repository is made.
        """
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, license=license, data=data)
            api = HfApi(token=token)
            repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
            return api.upload_folder(repo_id=repo_id, folder_path=folder, revision=branch, **options)

    @property
    def _model_args(self) -> dict[str, object]:
        """The arguments in config.json: not what was loaded when the model was built."""
        return self._arguments

    @_model_args.setter
    def _model_args(self, arguments: dict[str, object]) -> None:
        self._arguments = {key: value for key, value in arguments.items() if key not in OF_LOADING}

    def _config(self) -> str:
        """timm's config.json.

        Raises:
            InputError: if it does not build this model.
        """
        if not hasattr(self, 'pretrained_cfg'):
            raise InputError('the model has no config.json to be built from: build it by timm.create_model')
        try:
            with tempfile.TemporaryDirectory() as folder:
                save_config_for_hf(self, file := Path(folder, 'config.json'))
                again = timm.create_model(f'local-dir:{folder}', device='meta')
                config = file.read_text(encoding='utf-8')
        except ValueError as error:  # timm's, of an argument that JSON does not have
            raise InputError(f'config.json cannot describe the model: {describe(error)}. {ALONE}') from error
        own, built = forms(self), forms(again)
        differing = [name for name in {**own, **built} if own.get(name) != built.get(name)]
        if differing:
            raise InputError(f'config.json builds a model that differs in {first_names(differing, 3)}. {ALONE}')
        return config
