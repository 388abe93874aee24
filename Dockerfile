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
# spare an image built again the dependencies; they are gone after this step, hence the copies.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --package outboxd \
 && ! grep -q OUTBOXD_FAILPOINTS target/release/outboxd \
 && install -D target/release/outboxd /image/usr/local/bin/outboxd
# The image holds the binary, the shared libraries it is linked to (with the resolver's, which libc loads by name) and
# the CA certificates: no shell, no package manager.
RUN ldd /image/usr/local/bin/outboxd | grep -o '/[^ ]*' \
  | xargs -I{} sh -c 'install -D "$(readlink -f {})" "/image{}"' \
 && for lib in /lib/*-linux-gnu/libnss_dns.so.2 /lib/*-linux-gnu/libnss_files.so.2 /lib/*-linux-gnu/libresolv.so.2; do \
      install -D "$(readlink -f "$lib")" "/image$lib"; done \
 && install -D /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/ca-certificates.crt \
 && echo 'outboxd:x:65532:65532::/:' > /image/etc/passwd \
 && echo 'hosts: files dns' > /image/etc/nsswitch.conf

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
