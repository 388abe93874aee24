FROM rust:1-bookworm AS builder
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates libssl-dev pkg-config \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# Shown by the metric outboxd_build_info: docker build --build-arg REVISION=$(git rev-parse HEAD) .
ARG REVISION=unknown
ENV OUTBOXD_REVISION=$REVISION
# Default features: the failpoints that tests stop the daemon at must never ship. The cache mounts
# spare an image built again the dependencies. They are gone after this step, so it puts the image
# together as well: the binary, its libraries and the CA certificates, without a shell.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --package outboxd \
 && deploy/image/rootfs target/release/outboxd /image

FROM scratch
COPY --from=builder /image /
# By number, since Kubernetes' runAsNonRoot cannot check a name.
USER 65532:65532
# /metrics, /livez, /readyz
EXPOSE 9090
# The binary asks itself: there is no curl here. Kubernetes ignores this and uses its own probes.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
  CMD ["/usr/local/bin/outboxd", "healthcheck"]
ENTRYPOINT ["/usr/local/bin/outboxd"]
CMD ["run"]
