import pytest


@pytest.fixture(scope='session', autouse=True)
def short_waits():
    """torch waits five seconds for each worker of a loader that Python collects as garbage, in whatever test that is.
    MMEngine asks compilers for their versions in each run, and git for its own with each checkpoint."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL', 0.2)
        patch.setattr('mmengine.runner.runner.collect_env', dict)
        patch.setattr('mmengine.runner.runner.get_git_hash', str)
        yield
