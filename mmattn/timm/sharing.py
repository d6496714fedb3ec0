"""Models as folders of the Hugging Face Hub: weights, config.json and a card."""

import os
import re
import tempfile
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote

import timm
from huggingface_hub import ModelCard, ModelHubMixin
from timm.models._hub import save_config_for_hf

from ..errors import CheckpointError, InputError, describe
from ..outputs import check_output, whole_file
from ..version import __version__
from ..weights import first_names
from ..weights.downloads import from_hub
from ..weights.files import safetensors_of
from ..weights.licenses import chosen_license, licenses_of
from .config_json import check_model_args, forms, read_config, weights_of

Model = TypeVar('Model', bound='SharedModel')
#: arguments of huggingface_hub's functions, now or earlier, that have no meaning for a model
OF_HUB = set('endpoint etag_timeout headers local_dir proxies repo_type resume_download use_auth_token'.split())
#: of the Hub's model cards, as a template of Jinja
CARD = """---
{{ card_data }}
---

# {{ name }}

{{ backbone }} of mmattn {{ version }} for timm, {{ parameters }} M parameters, images of {{ size }} pixels.

```python
import timm
import mmattn.timm

model = timm.create_model('hf-hub:OWNER/NAME', pretrained=True)
model = mmattn.timm.TimmClassifier.from_pretrained('hf-hub:OWNER/NAME')
```

Settings: {{ settings }}.

Data: {{ data | default("not given", true) }}.

The license is that of the weights. It gives no right to the images.
"""
#: arguments of ``create_model`` that say what is loaded into a model, and not what it is
OF_LOADING = ('init_cfg', 'pretrained_strict', 'pretrained_filter_fn')
#: the end of a sentence on a model that no folder can describe
ALONE = 'Its weights alone are written by torch.save(model.state_dict(), FILE)'


class SharedModel(ModelHubMixin, library_name='mmattn', tags=['timm'], model_card_template=CARD):
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
            arguments: of ``timm.create_model``, instead of those in config.json. With another ``num_classes``, the
                classifier starts untrained.

        Raises:
            CheckpointError: if there is no such model, the Hub cannot be reached, config.json cannot be read, or
                tensors do not fit.
            ValueError: if an argument is wrong, such as ``features_only``, which ``timm.create_model`` takes.
        """
        if arguments.get('features_only'):
            raise ValueError("features_only is for timm.create_model('local-dir:FOLDER' or 'hf-hub:OWNER/NAME')")
        folder = Path(name).expanduser()
        local = folder.is_dir()
        if not local:
            name, _, named = re.sub(r'^(hf[-_]hub:|hf://)', '', str(name)).partition('@')
            revision = revision or unquote(named) or None
        if not local and not re.fullmatch(r'[\w.-]+/[\w.-]+', str(name)):
            raise CheckpointError(f'there is no folder {name}, and names on the Hub are OWNER/NAME')
        if refused := sorted(arguments.keys() & OF_HUB):
            raise ValueError(
                f'from_pretrained does not take {", ".join(refused)}: of huggingface_hub it takes revision, subfolder, '
                'token, cache_dir, force_download and local_files_only. A proxy is set by HTTPS_PROXY'
            )
        if local and (revision or force_download):
            raise ValueError(f'{name} is a folder: revision and force_download are for models on the Hub')
        subfolder = (subfolder or '').strip('/')
        folder /= subfolder
        place = f'hf://{name}' + (f'@{quote(revision, safe="")}' if revision else '') + (subfolder and f'/{subfolder}')
        options = dict(
            token=token, cache_dir=cache_dir, force_download=force_download, local_files_only=local_files_only
        )
        config = folder / 'config.json' if local else from_hub(f'{place}/config.json', **options)
        if not config.is_file():
            raise CheckpointError(
                f'{name} has no config.json, which save_pretrained writes: its weights alone are read by '
                'pretrained_cfg_overlay=dict(file=...) of timm.create_model'
            )
        architecture, saved, pretrained_cfg = read_config(config.read_bytes(), f'config.json of {name}')
        from .names import variants  # whose models are of a subclass

        if architecture not in variants():
            raise CheckpointError(f'config.json of {name} is of {architecture[:100]}, which is no model of mmattn')
        check_model_args(variants()[architecture][0].backbone, saved, f'config.json of {name}')
        weights = weights_of(folder) if local else from_hub(f'{place}/', **options)
        model = timm.create_model(
            architecture,
            pretrained=True,
            pretrained_cfg=dict(pretrained_cfg, source='local-dir', file=str(weights.parent)),
            pretrained_model_args=saved,
            **{**saved, **arguments},
        )
        return model.eval()

    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        license: str | None = None,
        repo_id: str | None = None,
        model_card_kwargs: dict[str, object] | None = None,
        **settings,
    ) -> str | None:
        """Write a folder, or nothing: see :class:`huggingface_hub.ModelHubMixin`, which also has the arguments.

        Args:
            license: of the weights, as the Hub names it, such as 'apache-2.0'. It may be left out if that of all
                weights that ``init_cfg`` of the backbone names is known.

        Raises:
            InputError: if ``from_pretrained`` could not build the model again, the folder cannot be written, or the
                license is not known.
        """
        card = self._card_settings(license, model_card_kwargs)
        self._config()
        folder = Path(save_directory)
        check_output(folder / 'model.safetensors')
        folder.mkdir(parents=True, exist_ok=True)
        # ModelHubMixin removes an earlier config.json first.
        with tempfile.TemporaryDirectory(prefix='.', dir=folder) as staged:
            answer = super().save_pretrained(staged, repo_id=repo_id or folder.name, model_card_kwargs=card, **settings)
            for file in Path(staged).iterdir():
                if file.name != 'README.md' or not (folder / file.name).exists():
                    os.replace(file, folder / file.name)
        return answer

    def push_to_hub(
        self,
        repo_id: str,
        *,
        license: str | None = None,
        model_card_kwargs: dict[str, object] | None = None,
        **settings,
    ) -> str:
        """Upload the model: see :class:`huggingface_hub.ModelHubMixin`, which also has the arguments.

        Args:
            license: see :meth:`save_pretrained`.

        Raises:
            InputError: if ``from_pretrained`` could not build the model again, or the license is not known; then no
                repository is made.
        """
        card = self._card_settings(license, model_card_kwargs)
        self._config()
        return super().push_to_hub(repo_id, model_card_kwargs=card, **settings)

    def _card_settings(self, license: str | None, given: dict[str, object] | None) -> dict[str, object]:
        """What the card says, with a license that is known."""
        given = given or {}
        init_cfg = self.backbone.init_cfg or ()
        entries = [init_cfg] if isinstance(init_cfg, dict) else init_cfg
        starts = licenses_of(entry.get('checkpoint') for entry in entries)
        return {**given, 'license': chosen_license(license or given.get('license'), starts)}

    def _save_pretrained(self, save_directory: Path) -> None:
        """Write the weights, with the settings that they do not show, and timm's config.json."""
        tensors = {name: value.contiguous() for name, value in self.state_dict().items()}
        with whole_file(save_directory / 'model.safetensors') as part:
            part.write_bytes(safetensors_of(tensors, dict(backbone=self.backbone.settings_note)))
        with whole_file(save_directory / 'config.json') as part:
            part.write_bytes(self._config())

    @property
    def _model_args(self) -> dict[str, object]:
        """The arguments that timm writes to config.json, without what was loaded when the model was built."""
        return self._arguments

    @_model_args.setter
    def _model_args(self, arguments: dict[str, object]) -> None:
        self._arguments = {key: value for key, value in arguments.items() if key not in OF_LOADING}

    def _config(self) -> bytes:
        """timm's config.json.

        Raises:
            InputError: if it does not build this model.
        """
        if not hasattr(self, 'pretrained_cfg'):
            raise InputError('the model has no config.json to be built from: build it by timm.create_model')
        try:
            with tempfile.TemporaryDirectory() as folder:
                save_config_for_hf(self, file := Path(folder, 'config.json'))
                config = file.read_bytes()
            architecture, saved, pretrained_cfg = read_config(config, 'config.json')
            again = timm.create_model(
                architecture,
                pretrained_cfg=dict(pretrained_cfg, source='local-dir'),
                pretrained_model_args=saved,
                device='meta',
                **saved,
            )
        except ValueError as error:  # timm's, of an argument that JSON does not have
            raise InputError(f'config.json cannot describe the model: {describe(error)}. {ALONE}') from error
        own, built = forms(self), forms(again)
        differing = [name for name in {**own, **built} if own.get(name) != built.get(name)]
        if differing:
            raise InputError(f'config.json builds a model that differs in {first_names(differing, 3)}. {ALONE}')
        return config

    def generate_model_card(self, *, license: str | None = None, **arguments) -> ModelCard:
        card = super().generate_model_card(
            name=self.pretrained_cfg['architecture'],
            backbone=type(self.backbone).__name__,
            version=__version__,
            parameters=f'{sum(parameter.numel() for parameter in self.parameters()) / 1e6:.2f}',
            size=self.pretrained_cfg['input_size'][1],
            settings=', '.join(f'{key}={value!r}' for key, value in self.backbone.settings.items()),
            **arguments,
        )
        card.data.license = license
        return card
