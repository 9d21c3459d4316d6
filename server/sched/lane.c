/* lane.c: opening and closing a lane. */
#include "sched/lane.h"

#include <stdlib.h>

/* Page sizes of the whole model, from what the pool says of each layer. */
static void measure_pages(srv_lane *lane, int32_t n_layers) {
    const quire_layer *layers = quire_session_layers(lane->session);
    for (int32_t i = 0; i < n_layers; i++) {
        quire_layer_stats stats;
        if (layers[i].share >= 0 ||
            quire_layer_get_stats(quire_session_pool(lane->session), i, &stats) != QUIRE_OK)
            continue;
        const size_t heads = (size_t)layers[i].n_kv_heads;
        const bool has_window = layers[i].window > 0;
        *(has_window ? &lane->window_page_bytes : &lane->page_bytes) += heads * stats.record_bytes;
        lane->raw_page_bytes +=
            heads * (size_t)(layers[i].k_dim + layers[i].v_dim) * QUIRE_PAGE_TOKENS * 2;
        if (layers[i].window > lane->window)
            lane->window = layers[i].window;
    }
}

bool srv_lane_open(srv_lane *lane, const srv_options *options, int32_t index) {
    quire_model_info info;
    quire_model_get_info(options->model, &info);
    *lane = (srv_lane){.index = index,
                       .session = options->caches[index].session,
                       .model = options->model,
                       .store = options->store,
                       .swap_dir = options->swap_dir,
                       .exact = options->exact,
                       .max_running = options->max_running,
                       .chunk = options->chunk,
                       .context = quire_session_context(options->caches[index].session),
                       .n_vocab = info.n_vocab,
                       .max_prefixes = options->max_prefixes};
    if (lane->store && lane->chunk > quire_session_put_rows(lane->session))
        lane->chunk = quire_session_put_rows(lane->session);
    lane->prefill_rows = lane->chunk;
    measure_pages(lane, info.n_layers);
    const size_t n = (size_t)lane->max_running;
    lane->running = calloc(n, sizeof *lane->running);
    lane->prefixes = calloc((size_t)lane->max_prefixes + 1, sizeof *lane->prefixes);
    lane->items = calloc(n, sizeof *lane->items);
    lane->rows = calloc(n, sizeof *lane->rows);
    return lane->running && lane->prefixes && lane->items && lane->rows;
}

void srv_lane_close(srv_lane *lane) {
    while (srv_prefix_evict(lane))
        ;
    free(lane->running);
    free(lane->prefixes);
    free(lane->items);
    free(lane->rows);
}

srv_choice *srv_lane_next(const srv_lane *lane, srv_walk *walk) {
    for (; walk->job < lane->n_running; walk->job++, walk->choice = 0)
        if (walk->choice < lane->running[walk->job]->n_choices)
            return &lane->running[walk->job]->choices[walk->choice++];
    return NULL;
}

int32_t srv_lane_present(const srv_lane *lane) {
    int32_t n = 0;
    srv_walk walk = {0};
    for (srv_choice *choice; (choice = srv_lane_next(lane, &walk));)
        n += choice->seq != NULL;
    return n;
}

bool srv_lane_is_idle(const srv_lane *lane) { return !lane->waiting && lane->n_running == 0; }
