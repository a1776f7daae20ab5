// Sampling: the tokens and log-probabilities of the rule that the CPU device follows, the same in any batch, and how fast.
#include "harness.cuh"
#include "sample.cuh"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

cudaStream_t stream;
constexpr int BLOCK_SIZE = 16, BLOCKS = 24, RECENT = 5; // of a slot's text

float bits_float(int x) { float y; memcpy(&y, &x, 4); return y; }
int float_bits(float x) { int y; memcpy(&y, &x, 4); return y; }

// --- the rule, one row, as crates/device-cpu has it (ops/sample.rs, options.rs, candidates.rs), with sorting in place of selection

struct Row {
    int vocabulary, position, known = 0;
    float temperature = 0, top_p = 1, min_p = 0;
    int top_k = 0, logprobs = -1;
    uint64_t seed = 0;
    std::vector<float> logits;
    // options
    std::vector<int> stops, bad_words, text, mask;
    std::vector<std::pair<int, float>> biases;
    float repetition = 0, presence = 0, frequency = 0;
    int prompt = 0, min_length = 0, words = 0;
};
struct Answer {
    int token = 0;
    std::vector<float> scores, logprobs; // scores of those that were drawn from, others -infinity; empty for greedy ones
};

void philox(uint32_t (&c)[4], uint32_t k0, uint32_t k1) {
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        const uint64_t a = 0xD2511F53ull * c[0], b = 0xCD9E8D57ull * c[2];
        const uint32_t next[4] = {uint32_t(b >> 32) ^ c[1] ^ k0, uint32_t(b), uint32_t(a >> 32) ^ c[3] ^ k1, uint32_t(a)};
        memcpy(c, next, sizeof next);
    }
}
float noise_of(const Row& row, int token) {
    uint32_t c[4] = {static_cast<uint32_t>(row.position), static_cast<uint32_t>(token / 4), 0, 0};
    philox(c, static_cast<uint32_t>(row.seed), static_cast<uint32_t>(row.seed >> 32));
    const float w = std::min((static_cast<float>(c[token % 4]) + 0.5f) * (1.0f / 4294967296.0f), 1 - 0x1p-24f);
    return -std::log(-std::log1p(-w));
}
void confine(std::vector<float>& x, const std::vector<int>& mask) {
    for (size_t i = 0; i < x.size(); i++)
        if (i / 32 >= mask.size() || !(mask[i / 32] >> i % 32 & 1)) x[i] = -INFINITY;
}
std::vector<float> changed(const Row& row) {
    auto x = row.logits;
    auto place = [&](int token) { return token >= 0 && token < row.vocabulary; };
    for (auto [token, bias] : row.biases)
        if (place(token)) x[token] += bias;
    const bool repeats = row.repetition > 0 && row.repetition != 1;
    if (repeats || row.presence != 0 || row.frequency != 0) {
        std::vector<int> count(x.size()), known(x.size());
        for (int i = 0; i < row.position; i++)
            if (place(row.text[i])) known[row.text[i]] = 1, count[row.text[i]] += i >= row.prompt;
        for (size_t i = 0; i < x.size(); i++) {
            if (!known[i]) continue;
            if (repeats) x[i] = x[i] > 0 ? x[i] / row.repetition : x[i] * row.repetition;
            volatile float much = static_cast<float>(count[i]) * row.frequency; // no FMA
            if (count[i]) x[i] -= much + row.presence;
        }
    }
    if (row.position < row.min_length)
        for (int token : row.stops)
            if (place(token)) x[token] = -INFINITY;
    for (size_t at = 0; at < row.bad_words.size(); at += 1 + row.bad_words[at]) {
        const int before = row.bad_words[at] - 1;
        const int* word = &row.bad_words[at + 1];
        if (before <= row.position && std::equal(word, word + before, &row.text[row.position - before]) && place(word[before])) x[word[before]] = -INFINITY;
    }
    if (!row.mask.empty()) confine(x, row.mask);
    return x;
}
int first_of(const std::vector<float>& x) { return static_cast<int>(std::max_element(x.begin(), x.end()) - x.begin()); }
std::vector<int> by_rank(const std::vector<float>& x) {
    std::vector<int> order;
    for (size_t i = 0; i < x.size(); i++)
        if (x[i] > -INFINITY) order.push_back(static_cast<int>(i));
    std::sort(order.begin(), order.end(), [&](int a, int b) { return x[a] != x[b] ? x[a] > x[b] : a < b; });
    return order;
}
// `top_p` and `min_p` are given apart: a choice may hang on their last bits.
Answer reference(const Row& row, float top_p, float min_p) {
    Answer answer;
    auto x = changed(row);
    const bool nothing = *std::max_element(x.begin(), x.end()) == -INFINITY;
    if (nothing) {
        x = row.logits;
        if (!row.mask.empty()) confine(x, row.mask);
        if (*std::max_element(x.begin(), x.end()) == -INFINITY) x = row.logits;
    }
    answer.token = row.known ? row.known - 1 : first_of(x);
    if (!row.known && row.temperature > 0 && !nothing) {
        const float most = x[first_of(x)], floor = std::log(std::max(min_p, 0.0f));
        auto scaled = [&](int id) { return (x[id] - most) / row.temperature; };
        auto order = by_rank(x);
        if (row.top_k > 0 && row.top_k < static_cast<int>(order.size())) order.resize(row.top_k);
        order.erase(std::remove_if(order.begin(), order.end(), [&](int id) { return scaled(id) < floor; }), order.end());
        double total = 0, sum = 0;
        for (int id : order) total += std::exp(scaled(id));
        if (top_p < 1)
            for (size_t i = 0; i < order.size(); i++)
                if ((sum += std::exp(scaled(order[i]))) >= double(top_p) * total) { order.resize(i + 1); break; }
        answer.scores.assign(x.size(), -INFINITY);
        for (int id : order) answer.scores[id] = scaled(id) + noise_of(row, id);
        answer.token = first_of(answer.scores);
    }
    if (row.logprobs >= 0) {
        const float most = row.logits[first_of(row.logits)];
        double sum = 0;
        for (float logit : row.logits) sum += std::exp(double(logit) - most);
        const double all = most + std::log(sum);
        answer.logprobs = {float(row.logits[answer.token] - all)};
        const auto order = by_rank(row.logits);
        for (int i = 0; i < row.logprobs; i++) {
            const bool there = i < static_cast<int>(order.size());
            answer.logprobs.push_back(bits_float(there ? order[i] : -1)), answer.logprobs.push_back(there ? float(row.logits[order[i]] - all) : -INFINITY);
        }
    }
    return answer;
}

// --- rows on the device

template <class T> T* up(const std::vector<T>& host) {
    T* p = device_memory<T>(std::max<size_t>(host.size(), 1));
    CHECK(cudaMemcpy(p, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}
template <class T> std::vector<T> down(const T* p, size_t count) {
    std::vector<T> host(count);
    CHECK(cudaMemcpy(host.data(), p, count * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
}
// Clusters that find room at a time.
int clusters_at_once(int vocabulary) {
    cudaLaunchConfig_t config = {};
    config.gridDim = 64 * CLUSTER, config.blockDim = THREADS, config.dynamicSmemBytes = sample_memory(vocabulary);
    cudaLaunchAttribute attribute[1];
    attribute[0].id = cudaLaunchAttributeClusterDimension, attribute[0].val.clusterDim.x = CLUSTER, attribute[0].val.clusterDim.y = attribute[0].val.clusterDim.z = 1;
    config.attrs = attribute, config.numAttrs = 1;
    CHECK(cudaFuncSetAttribute(sample_choose, cudaFuncAttributeMaxDynamicSharedMemorySize, sample_memory(vocabulary)));
    int count = 0;
    CHECK(cudaOccupancyMaxActiveClusters(&count, sample_choose, &config));
    return count;
}
struct Batch {
    SampleArgs a{};
    int clusters;
    int rows;
    std::vector<void*> owned;
    template <class T> T* keep(T* p) { owned.push_back(p); return p; }
    ~Batch() { for (void* p : owned) cudaFree(p); }

    Batch(const std::vector<Row>& list, const float* logits = nullptr) : rows(static_cast<int>(list.size())) {
        const int vocabulary = list[0].vocabulary, mask_words = (vocabulary + 31) / 32 - 1, stride = (vocabulary + 3) / 4 * 4;
        std::vector<float> all;
        std::vector<int> positions, parameters, known, state(rows * slot::INTS), lists(rows * LIST_INTS), table, history(rows * BLOCKS * BLOCK_SIZE), masks(static_cast<size_t>(rows) * 2 * mask_words), mask, index, first, ids, starts;
        for (int r = 0; r < rows; r++) {
            const Row& row = list[r];
            if (!logits) all.insert(all.end(), row.logits.begin(), row.logits.end()), all.resize((r + 1) * static_cast<size_t>(stride), NAN); // what lies past the last token is never looked at
            positions.push_back(row.position), known.push_back(row.known);
            for (int x : {float_bits(row.temperature), float_bits(row.top_p), row.top_k, float_bits(row.min_p), int(row.seed), int(row.seed >> 32), row.logprobs}) parameters.push_back(x);
            int *s = &state[r * slot::INTS], *l = &lists[r * LIST_INTS];
            s[slot::MIN_LENGTH] = row.min_length, s[slot::PROMPT_LENGTH] = row.prompt, s[slot::REPETITION] = float_bits(row.repetition), s[slot::PRESENCE] = float_bits(row.presence), s[slot::FREQUENCY] = float_bits(row.frequency);
            *l++ = static_cast<int>(row.stops.size()), l = std::copy(row.stops.begin(), row.stops.end(), l);
            *l++ = static_cast<int>(row.biases.size());
            for (auto [token, bias] : row.biases) *l++ = token, *l++ = float_bits(bias);
            *l++ = row.words, std::copy(row.bad_words.begin(), row.bad_words.end(), l);
            // Blocks of slots lie scattered; the last tokens of the text are of this step, and behind them stand tokens that the row must not see.
            for (int b = 0; b < BLOCKS; b++) table.push_back(b * rows + (r + b) % rows);
            const int start = std::max(row.position - RECENT, 0);
            for (int i = 0; i < start; i++) history[table[r * BLOCKS + i / BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE] = row.text[i];
            first.push_back(static_cast<int>(ids.size())), index.push_back(r);
            for (int i = 0; i < RECENT + 2; i++) ids.push_back(start + i < row.position ? row.text[start + i] : 3), starts.push_back(start + i);
            mask.push_back(row.mask.empty() ? 0 : 2);
            if (!row.mask.empty()) std::copy(row.mask.begin(), row.mask.end(), &masks[(r * 2ul + 1) * mask_words]);
        }
        a.logits = logits ? logits : keep(up(all));
        a.live = keep(up(std::vector<int>{rows})), a.positions = keep(up(positions)), a.parameters = keep(up(parameters)), a.known = keep(up(known));
        a.best = keep(up(std::vector<uint64_t>(rows))), a.arrived = keep(up(std::vector<uint32_t>(rows))), a.open = keep(up(std::vector<int>(rows, -1))), a.tokens = keep(up(std::vector<int>(rows, -2))), a.logprobs = keep(up(std::vector<float>(rows * SAMPLE_FLOATS, NAN))), a.error = keep(up(std::vector<int>{0}));
        a.vocabulary = vocabulary, a.stride = stride, clusters = std::min(rows, clusters_at_once(vocabulary));
        SampleOptions& o = a.options;
        o.state = keep(up(state)), o.lists = keep(up(lists)), o.block_table = keep(up(table)), o.history = keep(up(history)), o.masks = keep(up(masks)), o.mask = keep(up(mask)), o.request = keep(up(index)), o.state_slot = o.request, o.first_token = keep(up(first)), o.ids = keep(up(ids)), o.positions = keep(up(starts));
        o.blocks_per_slot = BLOCKS, o.block_size = BLOCK_SIZE, o.mask_positions = 2, o.mask_words = mask_words;
    }
    void run(bool pdl) {
        a.pdl = pdl;
        launch(stream, sample_largest, dim3(PARTS, rows), 256, 0, pdl, a);
        launch(stream, sample_choose, clusters * CLUSTER, THREADS, sample_memory(a.vocabulary), pdl, a);
    }
    std::vector<int> tokens(bool pdl = false) {
        run(pdl);
        CHECK(cudaStreamSynchronize(stream));
        return down(a.tokens, rows);
    }
};

// --- checks

// Rows of all kinds: smooth, peaked, on a coarse grid with many equals, nearly constant; every option alone and all together.
Row make_row(int i, int vocabulary) {
    Row row;
    row.vocabulary = vocabulary, row.logits.resize(vocabulary), row.seed = 0x9e3779b97f4a7c15ull * (i + 1), row.position = 3 + i * 37 % 340;
    auto any = [&](int what, int below) { return static_cast<int>((noise(77 + what, i * 4096ull + what) + 1) * 0.5f * below); };
    for (int j = 0; j < vocabulary; j++) {
        const float x = noise(i, j), y = noise(i + 5000, j), z = x + y + noise(i + 6000, j);
        row.logits[j] = i % 5 == 4 ? (j % 7 ? 1.5f : 1.25f) : i % 5 == 3 ? std::floor(z * 6) * 0.5f : i % 5 == 2 ? z * 3 + (x > 0.9999f ? 20 * y : 0) : z * 3;
        if (j % 1000 == 17 && i % 2) row.logits[j] = -INFINITY;
        if (j % 999 == 5) row.logits[j] = j % 2 ? 0.0f : -0.0f;
    }
    row.temperature = std::vector<float>{0, 0.7f, 1, 1.6f, 0.3f, 1}[i % 6];
    row.top_k = std::vector<int>{0, 40, 0, 1, 1000, 0, 5, vocabulary}[i / 2 % 8], row.top_p = std::vector<float>{1, 0.95f, 0.6f, 1, 0.999f, 0, 0.9f}[i % 7], row.min_p = std::vector<float>{0, 0.05f, 0, 0.3f}[i / 3 % 4];
    row.logprobs = std::vector<int>{-1, 20, 0, 5}[i / 5 % 4];
    if (i % 23 == 7) row.known = 1 + any(1, vocabulary);
    const auto order = by_rank(row.logits);
    for (int p = 0; p < row.position; p++) row.text.push_back(p % 3 ? order[std::min<size_t>(any(100 + p, 30), order.size() - 1)] : any(500 + p, vocabulary));
    row.prompt = row.position / 2;
    const int kind = i % 9;
    if (kind == 1 || kind == 8) row.repetition = 1.3f, row.presence = 0.4f, row.frequency = 0.11f;
    if (kind == 2 || kind == 8)
        for (int b = 0; b < 40; b++) row.biases.push_back({order[any(900 + b / 2, 60) % order.size()], b % 2 ? 1.7f : -0.6f}); // some tokens twice
    if (kind == 3 || kind == 8) row.stops = {order[0], order[order.size() / 2], -1, vocabulary}, row.min_length = row.position + (i % 4 ? 1 : 0);
    if (kind == 4 || kind == 8) {
        const int n = row.position;
        row.words = 4, row.bad_words = {1, order[1], 2, row.text[n - 1], order[0], 3, row.text[n - 2], row.text[n - 1], order[2], 2, row.text[n - 1] ^ 1, order[3]};
    }
    if (kind >= 5 && kind != 7) {
        row.mask.assign((vocabulary + 31) / 32 - 1, 0);
        for (auto& word : row.mask) word = float_bits(noise(i + 9000, &word - &row.mask[0])) & (kind == 5 ? 0x1111 : -1);
        if (kind == 6 && i % 2) std::fill(row.mask.begin(), row.mask.end(), 0), row.mask[2] = 1 << 5;                                     // one token
        if (kind == 6 && i % 4 == 1) row.stops = {69}, row.min_length = row.position + 1;                                                 // which is barred, so that nothing is left
        if (kind == 6 && i % 4 == 2) std::fill(row.mask.begin(), row.mask.end(), 0);                                                     // no token
    }
    return row;
}

void check(int vocabulary, const std::vector<int>& numbers) {
    std::vector<Row> rows;
    for (int i : numbers) rows.push_back(make_row(i, vocabulary));
    const int count = static_cast<int>(rows.size());
    Batch batch(rows);
    const auto tokens = batch.tokens(), again = batch.tokens(true);
    const auto logprobs = down(batch.a.logprobs, rows.size() * SAMPLE_FLOATS);
    expect(tokens == again, "the same batch twice, with dependent launch");
    expect(down(batch.a.error, 1)[0] == 0, "no error");
    int different = 0, wrong = 0, alone = 0;
    double worst = 0;
    for (int i = 0; i < count; i++) {
        const Row& row = rows[i];
        auto want = reference(row, row.top_p, row.min_p);
        if (tokens[i] != want.token) {
            // Last bits of exponents and logarithms: a tie of scores, or a token at the very edge of top-p or min-p.
            const float near = 2e-5f;
            bool explained = !want.scores.empty() && tokens[i] >= 0 && want.scores[tokens[i]] > want.scores[want.token] - near;
            for (float e : {-2e-6f, 2e-6f}) explained |= row.temperature > 0 && (reference(row, row.top_p * (1 + e), row.min_p).token == tokens[i] || reference(row, row.top_p, row.min_p * (1 + e)).token == tokens[i]);
            different++, wrong += !explained;
            printf("row %d: token %d, reference %d%s\n", i, tokens[i], want.token, explained ? ", within rounding" : "");
            want.token = tokens[i];
        } else
            for (size_t j = 0; j < want.logprobs.size(); j++) {
                const float got = logprobs[i * SAMPLE_FLOATS + j];
                if (j % 2) wrong += float_bits(got) != float_bits(want.logprobs[j]); // an id
                else if (got != want.logprobs[j]) worst = std::max(worst, std::abs(double(got) - want.logprobs[j]) / std::max(1.0, std::abs(double(want.logprobs[j]))));
            }
        if (i % 5 == 0) {
            Batch one({row});
            alone += one.tokens()[0] != tokens[i];
            const auto own = down(one.a.logprobs, SAMPLE_FLOATS);
            alone += memcmp(own.data(), &logprobs[i * SAMPLE_FLOATS], SAMPLE_FLOATS * 4) != 0;
        }
    }
    printf("vocabulary %d: %d rows, %d tokens other than the reference's, %d of them and of the ids beyond rounding; log-probabilities within %.1e; %d of %d rows change alone\n", vocabulary, count, different, wrong, worst, alone, (count + 4) / 5);
    expect(wrong == 0 && different * 20 <= count && worst < 3e-6 && alone == 0, "sampling");
}

// The text of a draft's row: the newest token and the drafts so far, behind the history.
void check_drafts(int vocabulary) {
    Row row = make_row(1, vocabulary);
    row.position = 41, row.text.resize(41, 9), row.prompt = 20, row.repetition = 1.5f, row.known = 0;
    Batch batch({row});
    std::vector<int> state = down(batch.a.options.state, slot::INTS);
    state[slot::LENGTH] = 39; // 38 are in the history; but the table holds only those before RECENT
    std::vector<int> history(BLOCKS * BLOCK_SIZE);
    for (int i = 0; i < 38; i++) history[i] = row.text[i]; // one slot: its blocks are in order
    for (int i = 0; i < 3; i++) state[slot::NEWEST + i] = row.text[38 + i];
    CHECK(cudaMemcpy(const_cast<int*>(batch.a.options.state), state.data(), state.size() * 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(const_cast<int*>(batch.a.options.history), history.data(), history.size() * 4, cudaMemcpyHostToDevice));
    batch.a.options.drafts = 1;
    expect(batch.tokens()[0] == reference(row, row.top_p, row.min_p).token, "a draft's row");
}
// Rows that are no distribution are reported, others beside them are not disturbed.
void check_errors(int vocabulary, std::vector<float> kinds) {
    for (float bad : kinds)
        for (float temperature : {0.0f, 1.0f}) {
            std::vector<Row> rows = {make_row(0, vocabulary), make_row(0, vocabulary)};
            for (auto& row : rows) row.temperature = temperature, row.top_p = 1, row.top_k = 0, row.min_p = 0;
            const int want = Batch({rows[0]}).tokens()[0];
            if (bad == -INFINITY) std::fill(rows[1].logits.begin(), rows[1].logits.end(), bad);
            else rows[1].logits[vocabulary - 1] = bad;
            Batch batch(rows);
            const auto tokens = batch.tokens();
            expect(tokens[0] == want && tokens[1] == -1 && down(batch.a.error, 1)[0] == 2, "a row of logits that are not numbers");
        }
}

__global__ void fill(float* to, long count) {
    for (long i = blockIdx.x * static_cast<long>(blockDim.x) + threadIdx.x; i < count; i += static_cast<long>(gridDim.x) * blockDim.x) to[i] = 4 * (noise(1, i) + noise(2, i) + noise(3, i));
}

int main(int argc, char**) {
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaFuncSetAttribute(sample_choose, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    if (argc > 1) {
        check(1003, {0, 8}), check_drafts(1003), check_errors(1003, {NAN}); // the eighth has all options
        return misses != 0;
    }
    auto up_to = [](int count) { std::vector<int> all(count); for (int i = 0; i < count; i++) all[i] = i; return all; };
    check(248320, up_to(81)), check(5003, up_to(300)), check(32000, up_to(90));
    check_drafts(248320), check_errors(248320, {NAN, -NAN, INFINITY, -INFINITY});
    constexpr int VOCABULARY = 248320, COPIES = 1024; // rows that no cache holds
    float* logits = device_memory<float>(static_cast<size_t>(COPIES) * VOCABULARY);
    fill<<<1024, 256, 0, stream>>>(logits, static_cast<long>(COPIES) * VOCABULARY);
    printf("us per step (TB/s of logits), %d tokens, %d clusters of %d at a time\n", VOCABULARY, clusters_at_once(VOCABULARY), CLUSTER);
    for (int count : {1, 4, 64, 256}) {
        printf("%3d rows:", count);
        for (auto [name, kind] : {std::pair{"greedy", 0}, {"gumbel", 1}, {"top-p", 2}, {"top-k 50, top-p", 3}, {"greedy, 20 log-probabilities", 4}, {"all options", 5}}) {
            std::vector<Row> rows(count);
            for (int i = 0; i < count; i++) {
                Row& row = rows[i];
                row.vocabulary = VOCABULARY, row.position = 300, row.seed = i, row.temperature = kind == 0 || kind == 4 ? 0 : 1;
                row.top_p = kind == 2 || kind == 3 || kind == 5 ? 0.95f : 1, row.top_k = kind == 3 || kind == 5 ? 50 : 0, row.logprobs = kind >= 4 ? 20 : -1;
                for (int p = 0; p < 300; p++) row.text.push_back(p * 7919 % VOCABULARY);
                if (kind == 5) row.min_p = 0.02f, row.repetition = 1.1f, row.presence = 0.1f, row.frequency = 0.1f, row.prompt = 100, row.biases = {{5, 1.0f}, {7, -1.0f}}, row.mask.assign(VOCABULARY / 32 - 1, 0x7fffffff);
            }
            Batch batch(rows, logits);
            const int rounds = COPIES / count < 16 ? COPIES / count : 16;
            const float us = graph_time(stream, [&] { for (int i = 0; i < rounds; i++) batch.a.logits = logits + static_cast<size_t>(i) * count * VOCABULARY, batch.run(true); }) / rounds;
            printf("  %s %.1f (%.2f)", name, us, count * VOCABULARY * 4.0 / us * 1e-6);
        }
        printf("\n");
    }
    printf(misses ? "%d MISSES\n" : "all hold\n", misses);
    return misses != 0;
}
