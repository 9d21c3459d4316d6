/* Channel orders and query-aware rounding of a pool's layers: checks, and what the device needs. */
#include <cmath>

#include "pool.h"
#include "rope.h"

namespace quire_cuda {

quire_status check_order(const quire_layer &c, int32_t index) {
    for (int32_t head = 0; head < c.n_kv_heads; head++) {
        std::vector<bool> seen((size_t)c.k_dim);
        for (int32_t place = 0; place < c.k_dim; place++) {
            const uint16_t channel = c.k_order[head * c.k_dim + place];
            if (channel >= c.k_dim || seen[channel])
                return fail(QUIRE_E_INVALID,
                            "layer %d, KV head %d: k_order[%d] is %d: not a permutation of %d "
                            "channels",
                            (int)index, (int)head, (int)place, (int)channel, (int)c.k_dim);
            seen[channel] = true;
        }
    }
    return QUIRE_OK;
}

/* Finite weights; the last two of a pair are a point within the unit circle. */
static quire_status check_weights(const quire_layer &c, int32_t index) {
    for (int32_t head = 0; head < c.n_kv_heads; head++) {
        const float *weights = c.k_feedback + head * feedback_count(c.k_dim);
        bool sound = true;
        for (size_t i = 0; i < feedback_count(c.k_dim); i++)
            sound = sound && std::isfinite(weights[i]);
        for (int j = 0; j < c.k_dim / 2; j++) {
            const float *ellipse = weights + 2 * j * j + 4 * j;
            sound = sound && ellipse[0] * ellipse[0] + ellipse[1] * ellipse[1] < 1;
        }
        if (!sound)
            return fail(QUIRE_E_INVALID,
                        "layer %d, KV head %d: k_feedback is not what quire_channel_feedback makes",
                        (int)index, (int)head);
    }
    return QUIRE_OK;
}

quire_status read_feedback(const quire_layer &c, int32_t index, Run *run) {
    run->has_feedback = has_feedback(c);
    if (!run->has_feedback)
        return QUIRE_OK;
    QUIRE_CUDA_TRY(check_weights(c, index));
    run->channels.resize((size_t)c.k_dim);
    run->angles.resize((size_t)c.k_dim / 2);
    return quire_cuda__rope_pairs(c.k_rope, c.k_dim, run->channels.data(), run->angles.data());
}

void place_feedback(const quire_cuda_pool &pool, Run *run) {
    const quire_layer &first = pool.layers[run->first].config;
    const int dim = first.k_dim;
    std::vector<uint16_t> place_of((size_t)dim);
    for (int32_t i = 0; i < run->n_layers; i++) {
        const quire_layer &c = pool.layers[run->first + i].config;
        for (int32_t head = 0; head < c.n_kv_heads; head++) {
            for (int place = 0; place < dim; place++)
                place_of[is_mixed(c.k) ? c.k_order[head * dim + place] : place] = (uint16_t)place;
            for (int d = 0; d < dim; d++)
                run->places.push_back(place_of[run->channels[d]]);
        }
    }
    for (int32_t page = 0; page < pool.max_pages; page++)
        for (int j = 0; j < dim / 2; j++) {
            const double angle = run->angles[j] * T * page; /* as the CPU computes it */
            run->turns.push_back(cos(angle));
            run->turns.push_back(sin(angle));
        }
}

Feedback feedback_of(const quire_cuda_pool &pool, int32_t layer) {
    const Run &run = pool.runs[pool.layers[layer].run];
    const quire_layer &c = pool.layers[layer].config;
    Feedback f = run.feedback;
    const size_t heads = (size_t)(layer - run.first) * c.n_kv_heads;
    f.weights += heads * feedback_count(c.k_dim);
    f.places += heads * c.k_dim;
    f.numbers = pool.words + pool.seal_numbers_at;
    return f;
}

} // namespace quire_cuda
