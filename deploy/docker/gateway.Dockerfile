# The gateway: HTTP in, queue out. No torch, no model.
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY gateway gateway
COPY worker worker
COPY shared shared
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist . \
    && python -m venv /opt/busway \
    && /opt/busway/bin/pip install --no-cache-dir "$(echo /dist/busway-*.whl)[gateway]"

FROM python:3.12-slim
COPY --from=build /opt/busway /opt/busway
ENV PATH=/opt/busway/bin:$PATH PYTHONUNBUFFERED=1
RUN useradd --uid 10001 --create-home busway
USER 10001
WORKDIR /home/busway
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --start-interval=1s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=2)"]
ENTRYPOINT ["python", "-P", "-m", "gateway"]
