# mmattn with MMDetection, MMSegmentation and MMPretrain, on GPUs of NVIDIA:
#
#     docker build -f docker/cuda.Dockerfile -t mmattn:cuda .
#     docker run --rm -it --gpus all --ipc host mmattn:cuda make gpu-check
#
# The environment is that of `make setup`, with the versions in requirements/onedl.txt. torch brings the libraries of
# CUDA 13.0.
FROM nvidia/cuda:13.0.2-base-ubuntu24.04
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# OpenCV needs libgl1 and libglib2.0-0t64. g++ and python3-dev are for Triton and torch.compile.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends -y g++ git libgl1 libglib2.0-0t64 make python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
ENV PIP_NO_CACHE_DIR=1
WORKDIR /opt/mmattn
COPY . .
RUN make setup && rm -rf ~/.cache
ENV PATH=/opt/mmattn/.venv/bin:$PATH
CMD ["bash"]
