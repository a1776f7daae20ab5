// The K plan of a weight: where its sums over K are cut, and who adds up which piece.
//
// A weight of M outputs and K inputs is tiles of 128 outputs, each of B = K / 64 blocks. The first `whole` tiles are dealt out to `workers`, as many to each, and their sums are not cut. All
// blocks of the tiles behind them, tile after tile, are dealt out to the first `shares` workers in contiguous, equal shares; a share that ends inside a tile cuts that tile's sum. The cuts depend on
// the weight's shape and on the GPU, never on tokens. Each piece is one chain of tensor-core products over ascending K that starts at zero, and pieces are added in ascending K in f32: every kernel
// that multiplies with the weight gives the same bits, whether a piece is a thread block's whole work (`stream.cu`) or a stop on its way (`wide.cu`).
#pragma once
#include "weight.cuh"

// Most pieces of a tile; src/weight/plan.rs sees to it.
constexpr int PIECE_LIMIT = 8;

// All in 32 bits, since a division of 64 costs more than a block: blocks times workers stay below 2^32 up to a weight of 130 GB.
__device__ __forceinline__ uint32_t cut_blocks(const KPlan& p) { return (p.tiles - p.whole) * p.blocks; }
// Where the share of a worker begins among the blocks of tiles that are cut.
__device__ __forceinline__ uint32_t share_begin(const KPlan& p, uint32_t worker) { return cut_blocks(p) * min(worker, p.shares) / p.shares; }
// The worker whose share holds such a block.
__device__ __forceinline__ int share_owner(const KPlan& p, uint32_t block) { return static_cast<int>(((block + 1) * p.shares - 1) / cut_blocks(p)); }
__device__ __forceinline__ bool is_whole(const KPlan& p, int tile) { return tile < static_cast<int>(p.whole); }
// Pieces of a tile: those of workers first_worker(tile) ..= last_worker(tile), for one that is cut.
__device__ __forceinline__ int first_worker(const KPlan& p, int tile) { return share_owner(p, (tile - p.whole) * p.blocks); }
__device__ __forceinline__ int last_worker(const KPlan& p, int tile) { return share_owner(p, (tile + 1 - p.whole) * p.blocks - 1); }
__device__ __forceinline__ int piece_count(const KPlan& p, int tile) { return is_whole(p, tile) ? 1 : last_worker(p, tile) - first_worker(p, tile) + 1; }
// Where a piece is among the partial sums of a product: those of whole tiles, then `pieces` places for each of the others.
__device__ __forceinline__ size_t piece_place(const KPlan& p, uint32_t tile, uint32_t piece) { return tile < p.whole ? tile : p.whole + (tile - p.whole) * p.pieces + piece; }
// The worker that has the first piece of a tile, for whoever walks over the pieces, and the block of the tile at which a worker's piece ends.
__device__ __forceinline__ int opening_worker(const KPlan& p, int tile) { return is_whole(p, tile) ? 0 : first_worker(p, tile); }
__device__ __forceinline__ uint32_t piece_end(const KPlan& p, int tile, int worker) {
    return is_whole(p, tile) ? p.blocks : min(share_begin(p, worker + 1) - (tile - p.whole) * p.blocks, p.blocks);
}

// The blocks of a worker, in order: those of its whole tiles, then its share of the others.
struct Share {
    uint32_t first, whole, behind, count; // of blocks: the first one, how many of whole tiles, the first one that is not, and how many in all
    __device__ __forceinline__ Share(const KPlan& p, uint32_t worker) {
        const uint32_t tile = p.whole * worker / p.workers, begin = share_begin(p, worker);
        first = tile * p.blocks, whole = (p.whole * (worker + 1) / p.workers - tile) * p.blocks;
        behind = p.whole * p.blocks + begin, count = whole + share_begin(p, worker + 1) - begin;
    }
    // The number that a block has in the weight.
    __device__ __forceinline__ uint32_t unit(uint32_t i) const { return i < whole ? first + i : behind + (i - whole); }
};
