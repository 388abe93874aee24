FROM rust:1-bookworm AS builder
# librdkafka is compiled here, against the OpenSSL of the same Debian release as the runtime image.
RUN apt-get update \
 && apt-get install -y --no-install-recommends libssl-dev pkg-config \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# Default features: the failpoints that tests stop the daemon at must never ship. The cache mounts
# spare an image built again the dependencies; they are gone after this step, hence the copy.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked \
 && cp target/release/outboxd /usr/local/bin/outboxd

# libc, libgcc, libssl and CA certificates; no shell and no package manager.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=builder /usr/local/bin/outboxd /usr/local/bin/outboxd
# By number, since Kubernetes' runAsNonRoot cannot check a name.
USER 65532:65532
# /metrics, /livez, /readyz
EXPOSE 9090
# The binary asks itself: there is no curl here. Kubernetes ignores this and uses its own probes.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
  CMD ["/usr/local/bin/outboxd", "healthcheck"]
ENTRYPOINT ["/usr/local/bin/outboxd"]
CMD ["run"]
