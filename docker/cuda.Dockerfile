# mmattn with MMDetection, MMSegmentation and MMPretrain, on GPUs of NVIDIA:
#
#     docker build -f docker/cuda.Dockerfile -t mmattn:cuda .
#     docker run --rm -it --gpus all --ipc host mmattn:cuda make gpu-check
#
# The environment is that of `make setup`, with the versions in requirements/onedl.txt. torch brings the libraries of
# CUDA 13.0. The compiler of the first image is for MMCV's operators, and is not in the second.
FROM nvidia/cuda:13.0.2-devel-ubuntu24.04 AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends -y g++ git make python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
# Without a GPU at hand, MMCV has to be told to compile for CUDA, and for which GPUs: Ampere, Ada, Hopper, Blackwell.
ENV FORCE_CUDA=1 \
    TORCH_CUDA_ARCH_LIST="8.0;8.6;8.9;9.0;10.0;12.0+PTX" \
    PIP_NO_CACHE_DIR=1
WORKDIR /opt/mmattn
COPY . .
RUN make setup

FROM nvidia/cuda:13.0.2-base-ubuntu24.04
# OpenCV needs libgl1 and libglib2.0-0t64. g++ and python3-dev are for Triton and torch.compile.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends -y g++ git libgl1 libglib2.0-0t64 make python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/mmattn
COPY --from=build /opt/mmattn .
ENV PATH=/opt/mmattn/.venv/bin:$PATH
CMD ["bash"]
