# Workers: `--target cpu` and `--target gpu` (NVIDIA). Neither holds a model: mount one, or name it as hf://...
# `--target flower` is the dashboard, which needs no llama.cpp.
# The library is compiled in a layer of its own, so that a change of our code does not compile it again.

FROM python:3.12-slim-bookworm AS build-cpu
# Portable: an image must not depend on the processor of the machine that built it.
ARG CMAKE_ARGS="-DGGML_NATIVE=OFF"
# The base image's tag decides the distribution's packages; their exact versions vanish from its mirrors.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ make \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /src
COPY constraints.txt .
RUN pip install --no-cache-dir --constraint constraints.txt llama-cpp-python
COPY . .
RUN pip install --no-cache-dir --constraint constraints.txt '.[worker,hf]'

FROM nvidia/cuda:12.8.1-devel-ubuntu24.04 AS build-gpu
# NATIVE=OFF: for all GPU generations, since a build has no GPU to ask. The driver's library comes with the host.
ARG CMAKE_ARGS="-DGGML_CUDA=on -DGGML_NATIVE=OFF -DCMAKE_EXE_LINKER_FLAGS=-Wl,--allow-shlib-undefined"
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ make python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /src
COPY constraints.txt .
RUN pip install --no-cache-dir --constraint constraints.txt llama-cpp-python
COPY . .
RUN pip install --no-cache-dir --constraint constraints.txt '.[worker,hf]'

FROM python:3.12-slim-bookworm AS flower
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir --constraint constraints.txt '.[flower]' \
    && useradd --no-log-init --create-home --uid 10001 llama
WORKDIR /home/llama
USER 10001
EXPOSE 5555
HEALTHCHECK --interval=30s --timeout=10s --start-period=20s \
    CMD ["python3", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:5555/healthcheck', timeout=5)"]
ENTRYPOINT ["celery", "-A", "celery_llama.celery_app", "flower"]
CMD ["--port=5555"]

FROM python:3.12-slim-bookworm AS cpu
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --no-log-init --create-home --uid 10001 llama \
    && install --directory --owner=llama /cache
COPY --from=build-cpu /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH CELERY_LLAMA_CACHE_DIR=/cache
USER 10001
# The worker is process 1 of its container, which its name ends with.
HEALTHCHECK --interval=30s --timeout=15s --start-period=120s \
    CMD ["sh", "-c", "celery -A celery_llama.celery_app inspect ping --timeout 5 -d celery-llama@${CELERY_LLAMA_WORKER_NAME:-$HOSTNAME-1}"]
ENTRYPOINT ["celery-llama-worker"]
CMD ["start"]

FROM nvidia/cuda:12.8.1-runtime-ubuntu24.04 AS gpu
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --no-log-init --create-home --uid 10001 llama \
    && install --directory --owner=llama /cache
COPY --from=build-gpu /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH CELERY_LLAMA_CACHE_DIR=/cache
USER 10001
# The worker is process 1 of its container, which its name ends with.
HEALTHCHECK --interval=30s --timeout=15s --start-period=120s \
    CMD ["sh", "-c", "celery -A celery_llama.celery_app inspect ping --timeout 5 -d celery-llama@${CELERY_LLAMA_WORKER_NAME:-$HOSTNAME-1}"]
ENTRYPOINT ["celery-llama-worker"]
CMD ["start"]
