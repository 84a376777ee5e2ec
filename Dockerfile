# The service: API, workers and the command line in one image. Both scripts run in CI without Docker too.
FROM python:3.11-slim AS built
WORKDIR /src
COPY . .
RUN scripts/install_service.sh /opt/shardwright && scripts/check_service.sh /opt/shardwright/bin

FROM python:3.11-slim
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/shardwright shardwright
COPY --from=built /opt/shardwright /opt/shardwright
ENV PATH=/opt/shardwright/bin:$PATH \
    SHARDWRIGHT_DATABASE_URL=sqlite:////var/lib/shardwright/shardwright.db \
    SHARDWRIGHT_HOST=0.0.0.0 \
    SHARDWRIGHT_REQUIRE_KEYS=true \
    SHARDWRIGHT_LOG_FORMAT=json
USER shardwright
VOLUME /var/lib/shardwright
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["shardwright"]
CMD ["serve"]
