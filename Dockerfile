# The server on Debian, for the CPU and for NVIDIA GPUs: nothing of CUDA is in the image, the driver comes from the host.
#
#   docker build -t paceline .
#   docker run --rm -p 8000:8000 -v paceline-models:/models paceline
#   docker run --rm -p 8000:8000 -v paceline-models:/models --gpus all paceline serve org/name --host 0.0.0.0

FROM rust:1.95-bookworm AS build
# The toolchain of the image is the one that rust-toolchain.toml names.
ENV RUSTUP_TOOLCHAIN=1.95.0
WORKDIR /src
COPY . .
RUN cargo build --release --locked

FROM debian:bookworm-slim
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin paceline \
    && install --directory --owner=paceline /models
COPY --from=build /src/target/release/paceline /usr/local/bin/paceline
# By its number: Kubernetes cannot tell that a name is not root's.
USER 10001
# Models are kept here; NVIDIA's runtime looks at the other two.
ENV HF_HOME=/models \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
VOLUME /models
EXPOSE 8000
# A container's network is its own: whoever publishes the port decides who may connect.
ENTRYPOINT ["paceline"]
CMD ["serve", "--host", "0.0.0.0"]
