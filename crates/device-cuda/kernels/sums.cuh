// The sums of a warpgroup on Hopper's tensor cores, 64 outputs x N tokens, by the kind of the weight: what `stream.cu` and `wide.cu` have in common.
#pragma once
#include "f8.cuh"
#include "wgmma.cuh"

#if HOPPER
// The end of a ring at which a warpgroup reads.
template <class Weight, int N, int Stages> struct Reader {
    uint32_t data, full, empty;
    int group; // which of the two it is
    int behind = -1; // read, but not yet given back
    int parity = 0, stage = 0;

    // Waits for the next block.
    __device__ __forceinline__ uint32_t block() const {
        barrier_wait(full + stage * 8, parity);
        return data + stage * Stage<Weight, N>::bytes;
    }
    __device__ __forceinline__ void advance() {
        if (++stage == Stages) stage = 0, parity ^= 1;
    }
    __device__ __forceinline__ void give_back(int read) const { barrier_arrive(empty + read * 8); }
};

// A piece: `add` takes the next block from the ring, and after `end` the sums are there.
template <class Weight, int N> struct Sums;

// The low half of an operand, and the operand: high halves are all the same, and what lies n times sixteen bytes further on has n more. Less to compute for every step than by address.
__device__ __forceinline__ uint32_t operand_low(uint32_t address) { return static_cast<uint32_t>(operand(address)); }
__device__ __forceinline__ uint64_t operand_from(uint32_t low) {
    uint64_t whole;
    asm("mov.b64 %0, {%1, %2};" : "=l"(whole) : "r"(low), "r"(static_cast<uint32_t>(operand(0) >> 32)));
    return whole;
}

// Operands stay in shared memory. Products of a block are waited for when the next one's are on their way.
template <bool F16, int N> struct Sums<Tiled<F16>, N> {
    static constexpr bool short_of_registers = false;
    static constexpr int readers = 2; // that give a stage back: one thread of each warpgroup
    float value[N / 2];
    int keep = 0;

    template <class Ring> __device__ __forceinline__ void add(Ring& ring) {
        ask(ring);
        settle(ring);
    }
    // The two halves of `add`: products of the next block are asked for; those of the block before are there, and its stage is given back.
    template <class Ring> __device__ __forceinline__ void ask(Ring& ring) {
        const uint32_t block = ring.block(), w = operand_low(block + ring.group * 64 * 128), x = operand_low(block + Tiled<F16>::room);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < BLOCK_K / 16; k++) {
            wgmma<N, F16>(value, operand_from(w + k * 2), operand_from(x + k * 2), keep);
            keep = 1;
        }
        wgmma_commit();
    }
    template <class Ring> __device__ __forceinline__ void settle(Ring& ring) {
        wgmma_wait<1>();
        give_back(ring);
        ring.behind = ring.stage;
        ring.advance();
    }
    __device__ __forceinline__ void end() {
        wgmma_wait<0>();
        regained(value);
    }
    // Gives back what is behind: nothing is, for the next piece.
    template <class Ring> __device__ __forceinline__ void leave(Ring& ring) {
        give_back(ring);
        ring.behind = -1;
    }

  private:
    template <class Ring> __device__ __forceinline__ void give_back(const Ring& ring) {
        if (ring.behind >= 0 && threadIdx.x % 128 == 0) ring.give_back(ring.behind);
    }
};

// Codes become bf16 in registers, which wgmma takes as they are; a block's sum is multiplied by the scales on its way to the piece's.
template <int N> struct Sums<Scaled, N> {
    static constexpr bool short_of_registers = N == 128;
    static constexpr int readers = 8; // one thread of each warp: codes have been read when its own warp has them
    float value[N / 2];

    __device__ Sums() {
#pragma unroll
        for (int i = 0; i < N / 2; i++) value[i] = 0;
    }
    template <class Ring> __device__ __forceinline__ void add(Ring& ring) {
        constexpr int together = N < 64 ? F8_STEPS : 2; // steps whose codes are turned at a time: products of many tokens take as long as that does
        const int sixteen = threadIdx.x / 32;
        const uint32_t w = ring.block(), x = operand_low(w + Scaled::room), at = f8_codes(w, sixteen);
        uint4 codes[F8_STEPS / 2];
        uint32_t operands[F8_STEPS / together][together][4];
        float dot[N / 2];
#pragma unroll
        for (int pair = 0; pair < F8_STEPS / 2; pair++) codes[pair] = f8_load(at + pair * 512);
        const float2 scales = f8_scales(w, sixteen);
#pragma unroll
        for (int first = 0; first < F8_STEPS; first += together) {
            auto& own = operands[first / together];
#pragma unroll
            for (int i = 0; i < together; i += 2) f8_operands(own[i], own[i + 1], codes[(first + i) / 2]);
            regained(own);
            wgmma_begin();
#pragma unroll
            for (int i = 0; i < together; i++) {
                const int step = first + i;
                wgmma_weights<N>(dot, own[i], operand_from(x + (step / 4 * N * 128 + step % 4 * 32) / 16), step > 0);
            }
        }
        wgmma_commit();
        wgmma_wait<0>();
        regained(dot);
#pragma unroll
        for (auto& own : operands) regained(own);
#pragma unroll
        for (int i = 0; i < N / 2; i++) value[i] = __fmaf_rn(i % 4 < 2 ? scales.x : scales.y, dot[i], value[i]);
        __syncwarp();
        if (threadIdx.x % 32 == 0) ring.give_back(ring.stage);
        ring.advance();
    }
    __device__ __forceinline__ void end() {}
    template <class Ring> __device__ __forceinline__ void leave(Ring&) {}
};
#endif
