# The worker: one model on one device. The model is not in the image; the first worker fetches it into the cache volume.
FROM python:3.12-slim AS build
# torch for a CPU. For a GPU the default index has it: --build-arg TORCH_INDEX=
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python -m venv /opt/busway \
    && /opt/busway/bin/pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch==2.13.0
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY gateway gateway
COPY worker worker
COPY shared shared
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist . \
    && /opt/busway/bin/pip install --no-cache-dir "$(echo /dist/busway-*.whl)[worker]"

FROM python:3.12-slim
COPY --from=build /opt/busway /opt/busway
ENV PATH=/opt/busway/bin:$PATH PYTHONUNBUFFERED=1 \
    BUSWAY_CACHE_DIR=/var/cache/busway HF_HOME=/var/cache/busway/huggingface \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN useradd --uid 10001 --create-home busway && install -d -o busway /var/cache/busway
USER 10001
WORKDIR /home/busway
VOLUME /var/cache/busway
# Healthy is a worker whose heartbeat Redis has seen within its lease; the first start fetches the model.
HEALTHCHECK --interval=30s --timeout=10s --start-period=600s --start-interval=5s \
    CMD ["busway", "status", "--here"]
ENTRYPOINT ["python", "-P", "-m", "worker"]
