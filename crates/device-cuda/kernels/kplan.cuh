// The K plan of a weight: where its sums over K are cut, and who adds up which piece.
//
// A weight of M outputs and K inputs is tiles of 128 outputs, each of B = K / 64 blocks. All blocks, tile after tile, are dealt out to `workers` in
// contiguous, equal shares; a share that ends inside a tile cuts that tile's sum. The cuts depend on the weight's shape and on the GPU, never on
// tokens. Each piece is one chain of tensor-core products over ascending K that starts at zero, and pieces are added in ascending K in f32: every kernel that
// multiplies with the weight gives the same bits, whether a piece is a thread block's whole work (`stream.cu`) or a stop on its way (`wide.cu`).
#pragma once
#include "weight.cuh"

// Most pieces of a tile; src/weight/plan.rs sees to it.
constexpr int PIECE_LIMIT = 8;

// All in 32 bits, since a division of 64 costs more than a block: blocks times workers stay below 2^32 up to a weight of 130 GB.
__device__ __forceinline__ uint32_t plan_total(const KPlan& p) { return p.tiles * p.blocks; }
__device__ __forceinline__ uint32_t plan_begin(const KPlan& p, uint32_t worker) { return plan_total(p) * worker / p.workers; }
// The worker whose share holds block `unit`.
__device__ __forceinline__ int plan_owner(const KPlan& p, uint32_t unit) { return static_cast<int>(((unit + 1) * p.workers - 1) / plan_total(p)); }
// Pieces of a tile: those of workers first_worker(tile) ..= last_worker(tile).
__device__ __forceinline__ int first_worker(const KPlan& p, int tile) { return plan_owner(p, static_cast<uint32_t>(tile) * p.blocks); }
__device__ __forceinline__ int last_worker(const KPlan& p, int tile) { return plan_owner(p, static_cast<uint32_t>(tile + 1) * p.blocks - 1); }
