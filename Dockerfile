# mixprec for the CPU: docker build -t mixprec . && docker run --rm -v "$PWD:/work" mixprec info
# For a GPU: --build-arg EXTRAS=cuda13, and docker run --gpus all. hadolint finds nothing in it; it has never been
# built, as no machine of the project has a Docker daemon.
FROM python:3.12-slim
ARG EXTRAS=dali
# The compiler is for the native library: docs/native.md.
RUN apt-get update && apt-get install --yes --no-install-recommends g++=4:* && rm -rf /var/lib/apt/lists/*
COPY . /mixprec
# Chainer has an sdist only, which setuptools 81 and later cannot build.
RUN pip install --no-cache-dir --upgrade "pip>=25.3" && \
    pip install --no-cache-dir --build-constraint /mixprec/build-constraints.txt "/mixprec[${EXTRAS}]"
RUN useradd --uid 1000 --create-home mixprec && install --directory --owner=1000 /work
USER 1000
WORKDIR /work
ENTRYPOINT ["mixprec"]
