# Three images:
#
#   docker build -t sureq .                       sureq serve
#   docker build -t dq --target dq .              a stand-in for DefferedQ's image: its port, variables and log
#   docker build -t sureq-redis --target redis .  Redis with the module

FROM rust:1-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked -p sureq-cli

FROM build AS build-module
RUN apt-get update && apt-get install -y --no-install-recommends libclang-dev
RUN cargo build --release --locked -p sureq-module

FROM debian:bookworm-slim AS redis
RUN apt-get update && apt-get install -y --no-install-recommends redis-server && rm -rf /var/lib/apt/lists/* \
    && install -d -o redis /data
COPY --from=build-module /src/target/release/libsureq_module.so /usr/lib/redis/modules/
WORKDIR /data
VOLUME /data
EXPOSE 6379
USER redis
# What is confirmed is on disk. Protected mode keeps other machines out until there is a password.
CMD ["redis-server", "--loadmodule", "/usr/lib/redis/modules/libsureq_module.so", \
     "--appendonly", "yes", "--appendfsync", "always"]

FROM debian:bookworm-slim AS dq
# As in the original's image; 0 leaves each of them off.
ENV DQ_PROFILER_ENABLED=0 \
    DQ_INACTIVE_CONNECTION_TIME_SECONDS=0 \
    DQ_RESERVED_TASK_STUCK_TIME_SECONDS=0 \
    DQ_RESERVED_TASK_STUCK_MAX_ATTEMPTS=0
COPY --from=build /src/target/release/sureq /dq/dq
RUN mkdir -p /var/log/dq /var/lib/dq
# The original kept its tasks in memory only; these survive.
VOLUME /var/lib/dq
EXPOSE 12000
# `exec`, so that the server is the process that the engine signals, and ends in good order.
ENTRYPOINT exec /dq/dq \
    -h "" \
    -p 12000 \
    -debug ${DQ_PROFILER_ENABLED} \
    -ict ${DQ_INACTIVE_CONNECTION_TIME_SECONDS} \
    -rtt ${DQ_RESERVED_TASK_STUCK_TIME_SECONDS} \
    -rta ${DQ_RESERVED_TASK_STUCK_MAX_ATTEMPTS} \
    -home file:/var/lib/dq \
    >> /var/log/dq/server.log 2>&1

# Without users it listens on loopback only: run it with `--network host`, or let it share the network of the container that
# uses it. docs/operate/deployment.md has a compose file with users.
FROM debian:bookworm-slim AS sureq
RUN useradd --system --no-create-home sureq && install -d -o sureq /var/lib/sureq
COPY --from=build /src/target/release/sureq /usr/local/bin/sureq
ENV SUREQ_SERVE_HOME=file:/var/lib/sureq
USER sureq
VOLUME /var/lib/sureq
ENTRYPOINT ["/usr/local/bin/sureq"]
CMD ["serve"]
