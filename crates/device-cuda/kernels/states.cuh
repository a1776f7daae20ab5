// What a request's tokens mean for its recurrent state: see `RequestRow` and `StateShape`.
#pragma once
#include "step.cuh"

struct StateRow {
    int slot, first_token, start, tokens, end; // positions from `start` to `end`
    int state_at, state_end;                   // where the state stands, and where it is left
    int restore;                               // the snapshot that holds the state, or -1
    int snapshot_at, snapshot;                 // the position whose state is saved, or 0, and where

    // Whether all entries that the row reads and leaves have places of their own in the rings.
    __device__ __forceinline__ bool is_short(const StateView& s) const { return end - state_at <= static_cast<int>(s.entries); }
};

// The tokens of a request row; false if it has none, or if it names what is not there, which is reported. `tokens` are those of the step.
__device__ __forceinline__ bool state_row(const StateView& s, const Tables& t, int request, int tokens, StateRow& row, int32_t* fault) {
    if (request < 0 || request >= request_rows(t)) return false;
    const RequestRow r = t.requests[request];
    if (r.token_count == 0) return false;
    bool holds = r.first_token >= 0 && r.token_count > 0 && r.token_count <= tokens && r.first_token <= tokens - r.token_count && static_cast<uint32_t>(r.slot) < s.slots;
    if (holds) {
        row.slot = r.slot, row.first_token = r.first_token, row.tokens = r.token_count;
        row.start = t.tokens[r.first_token].position, row.end = row.start + r.token_count;
        row.state_at = r.state_at, row.state_end = r.state_end, row.restore = r.restore - 1, row.snapshot_at = max(r.snapshot_at, 0), row.snapshot = r.snapshot;
        const int entries = s.entries;
        holds = row.state_at >= 0 && row.state_at % STATE_GRID == 0 && row.state_end % STATE_GRID == 0 && row.state_at <= row.state_end && row.state_at <= row.start &&
                row.state_end <= row.end && row.start - row.state_at <= entries && row.end - row.state_end <= entries;
        if (row.restore >= 0) holds = holds && row.restore < static_cast<int>(s.snapshots) && row.state_at == row.start;
        if (row.snapshot_at > 0)
            holds = holds && static_cast<uint32_t>(row.snapshot) < s.snapshots && row.snapshot != row.restore && row.snapshot_at % STATE_GRID == 0 && row.snapshot_at > row.state_at && row.snapshot_at <= row.state_end;
    }
    if (!holds) report(fault, RecordHeader::BAD_SLOT);
    return holds;
}

// Where the input of a convolution at a position is: of this step, of one before, or of the snapshot that the request starts from. Null before the sequence, where it is zero.
__device__ __forceinline__ const float* place_seen(const Matrix& x, const StateView& s, const StateRow& row, int position, int channel) {
    if (position >= row.start) return row_of(x, row.first_token + position - row.start) + channel;
    if (position < 0) return nullptr;
    const int before = s.conv_width - 1;
    if (row.restore >= 0) return s.saved_inputs + (static_cast<size_t>(row.restore) * before + position + before - row.start) * s.conv_channels + channel;
    return s.inputs + (static_cast<size_t>(row.slot) * s.conv_inputs + position % s.conv_inputs) * s.conv_channels + channel;
}
__device__ __forceinline__ float seen(const Matrix& x, const StateView& s, const StateRow& row, int position, int channel) {
    const float* at = place_seen(x, s, row, position, channel);
    return at ? *at : 0;
}
