// The K plan of a weight: where its sums over K are cut, and who adds up which piece.
//
// A weight of M outputs and K inputs is R = M / 128 tiles of B = K / 64 blocks. All R * B blocks, tile after tile, are dealt out to `workers` in
// contiguous, equal shares; a share that ends inside a tile cuts that tile's sum. The cuts depend on M, K and `workers` (a property of the GPU), never on
// tokens. Each piece is one chain of wgmma over ascending K that starts at zero, and pieces are added in ascending K in f32: every kernel that multiplies with
// the weight gives the same bits, whether a piece is a thread block's whole work (`stream.cuh`) or a stop on its way (`wide.cuh`).
#pragma once
#include <cstdint>

constexpr int TILE = 128;   // outputs
constexpr int BLOCK_K = 64; // inputs: 128 bytes, one swizzled row
constexpr int PIECE_LIMIT = 16;

struct Plan {
    int tiles, blocks, workers;

    // All in 32 bits, since a division of 64 costs more than a block: blocks times workers stay below 2^32 up to a weight of 130 GB.
    __host__ __device__ uint32_t total() const { return static_cast<uint32_t>(tiles) * blocks; }
    __host__ __device__ uint32_t begin(uint32_t worker) const { return total() * worker / workers; }
    // The worker whose share holds block `unit`.
    __host__ __device__ int owner(uint32_t unit) const { return static_cast<int>(((unit + 1) * workers - 1) / total()); }
    // Pieces of a tile: those of workers first(tile) ..= last(tile).
    __host__ __device__ int first(int tile) const { return owner(static_cast<uint32_t>(tile) * blocks); }
    __host__ __device__ int last(int tile) const { return owner(static_cast<uint32_t>(tile + 1) * blocks - 1); }
    // Most pieces of any tile, the stride of the buffer of partial sums.
    __host__ int most_pieces() const {
        int most = 1;
        for (int tile = 0; tile < tiles; tile++) most = last(tile) - first(tile) + 1 > most ? last(tile) - first(tile) + 1 : most;
        return most;
    }
};
