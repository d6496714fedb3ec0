"""What a run writes has no secrets: its log, its config in the work folder, and what checkpoints note of it."""

import logging
from collections.abc import Callable
from contextlib import suppress

from mmengine.config import Config

from ..privacy import config_without_secrets, without_secrets


class WrittenConfig(Config):
    """A config that is written without secrets, see :func:`mmguard.privacy.without_secrets`; its values stay.

    A run is built from the values. What MMEngine writes of a config, to logs, files, checkpoints and services, it takes
    from ``to_dict``.
    """

    @classmethod
    def of(cls, cfg: Config) -> 'WrittenConfig':
        """The same config, written without secrets."""
        written = cls.__new__(cls)
        written.__setstate__(cfg.__getstate__())
        return written

    def to_dict(self, *args: object, **kwargs: object) -> dict:
        return config_without_secrets(super().to_dict(*args, **kwargs))


def without_secrets_factory(factory: Callable[..., logging.LogRecord]) -> Callable[..., logging.LogRecord]:
    """A factory of log records, for ``logging.setLogRecordFactory``, whose messages have no secrets: MMEngine and
    others log the address of each file that they read."""

    def without(*args: object, **kwargs: object) -> logging.LogRecord:
        record = factory(*args, **kwargs)
        with suppress(Exception):  # A format that does not fit is logging's to report.
            record.msg, record.args = without_secrets(record.getMessage()), ()
        return record

    return without
