// How two warpgroups multiply tile after tile without waiting for results to leave, for weights of 16 bits and strips of 128 tokens.
//
// A warpgroup has the sums of a piece and the total of a tile's pieces. When a tile is done, its total leaves in parts while the first piece of the next one is multiplied: behind the blocks
// that are asked for, evenly, so that none is left when the piece ends. (A second set of sums, so that pieces need not be waited for, was no faster.)
#pragma once
#include "staged.cuh"
#include "sums.cuh"
#include "walk.cuh"

#if HOPPER
// A piece of a tile: blocks between two of the plan's cuts.
struct Piece {
    int tile;
    uint32_t blocks; // 0: none is left
    bool opens, closes; // its tile
};

// The pieces of a thread block's tiles, in order.
struct PieceWalk {
    WideWalk<128> walk;
    WideItem at = {};
    int worker = 0;
    uint32_t block = 0;
    __device__ __forceinline__ Piece next() {
        const KPlan& plan = walk.a.plan;
        if (block == 0) {
            if (!walk.there()) return {};
            at = walk.at(), worker = opening_worker(plan, at.tile);
            walk.advance();
        }
        const uint32_t stop = piece_end(plan, at.tile, worker++);
        const Piece piece = {at.tile, stop - block, block == 0, stop == plan.blocks};
        block = piece.closes ? 0 : stop;
        return piece;
    }
};

// The total of a tile, and how much of it has left.
struct Outgoing {
    const WideArgs& a;
    char* staging;
    float total[64];
    int part = PARTS, tile = 0;

    template <int Part> __device__ __forceinline__ void send() {
        stage_part<Part>(a, staging, tile, [&](int j, int q) { return total[4 * j + q]; });
    }
    // Sends the next part.
    __device__ __forceinline__ void send_part() {
        switch (part++) {
        case 0: send<0>(); break;
        case 1: send<1>(); break;
        case 2: send<2>(); break;
        case 3: send<3>(); break;
        case 4: send<4>(); break;
        case 5: send<5>(); break;
        case 6: send<6>(); break;
        default: send<7>();
        }
    }
    // Adds a piece whose sums are there. Nothing is left of the tile before.
    __device__ __forceinline__ void add(const Piece& piece, float (&sums)[64]) {
        regained(sums);
        if (piece.opens) {
#pragma unroll
            for (int i = 0; i < 64; i++) total[i] = sums[i];
        } else {
#pragma unroll
            for (int i = 0; i < 64; i++) total[i] = __fadd_rn(total[i], sums[i]);
        }
        if (piece.closes) part = 0, tile = piece.tile;
    }
};

// Multiplies everything that a warpgroup has to.
template <bool F16, int Stages> __device__ __forceinline__ void multiply_flowing(const WideArgs& a, Reader<Tiled<F16>, 128, Stages> ring, char* staging) {
    PieceWalk walk = {WideWalk<128>(a)};
    Outgoing out = {a, staging};
    Piece now = walk.next();
    while (now.blocks) {
        Sums<Tiled<F16>, 128> sums;
        Piece following;
        for (uint32_t block = 0; block < now.blocks; block++) {
            sums.ask(ring);
            if (block == 0) following = walk.next(); // divisions, while there is time
            while (out.part < PARTS && out.part * now.blocks < PARTS * (block + 1)) out.send_part();
            sums.settle(ring);
        }
        sums.end();
        sums.leave(ring);
        out.add(now, sums.value);
        now = following;
    }
    while (out.part < PARTS) out.send_part();
}

// The warp that takes results away.
__device__ __forceinline__ void copy_flowing(const WideArgs& a, char* staging) {
    const int live = a.weights ? static_cast<int>(a.out.bucket) : live_rows(a.out);
    WideWalk<128> walk(a);
    for (; walk.there(); walk.advance()) {
        const WideItem at = walk.at();
        announce_room();
        copy_staged(a, staging, at.tile, at.strip, live);
    }
    bulk_stores_wait();
}
#endif
