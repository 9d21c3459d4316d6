/* graph_run.h: computing a graph whose caches may be in pages. */
#ifndef QUIRE_PLUGIN_GRAPH_RUN_H
#define QUIRE_PLUGIN_GRAPH_RUN_H

#include "graph_scan.h"

/* `scan` is kept from graph to graph; zero at first, graph_scan_free at the end. */
enum ggml_status graph_run(struct graph_scan *scan, struct ggml_cgraph *graph, ggml_backend_t cpu,
                           int n_threads);

#endif
