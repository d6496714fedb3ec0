# mmattn with MMDetection, MMSegmentation and MMPretrain, on CPUs:
#
#     docker build -f docker/cpu.Dockerfile -t mmattn .
#     docker run --rm -it mmattn make test
#
# The environment is that of `make setup`, with the versions in requirements/onedl.txt.
FROM python:3.11-slim-bookworm
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# OpenCV needs libgl1 and libglib2.0-0, the tests need git.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends -y g++ git libgl1 libglib2.0-0 make \
    && rm -rf /var/lib/apt/lists/*
# The builds of torch without CUDA have higher versions, such as 2.11.0+cpu, and so are taken.
ENV PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu \
    PIP_NO_CACHE_DIR=1
WORKDIR /opt/mmattn
COPY . .
RUN make setup && rm -rf ~/.cache
ENV PATH=/opt/mmattn/.venv/bin:$PATH
CMD ["bash"]
