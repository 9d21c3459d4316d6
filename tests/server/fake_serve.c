/* fake_serve.c: the HTTP layer as a program, over the parts of fake_parts.h.
 * usage: fake_serve [NAME=VALUE].. with the names of srv_options' network fields, store=DIR or
 * tier=PLACE, which `quire serve` opens a Redis server as */
#include "fake_parts.h"
#include "page/page_files.h"

#ifdef QUIRE_STORE
#include "quire_store.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const unsigned char page[] = "<!doctype html><title>fake</title>", style[] = "body {}";
const srv_page_file srv_page_files[] = {
    {"index.html", page, sizeof page - 1}, {"style.css", style, sizeof style - 1}, {0, 0, 0}};

static bool set(srv_options *o, const char *name, const char *value) {
    const struct {
        const char *name;
        int32_t *number;
    } numbers[] = {{"max_connections", &o->max_connections},
                   {"request_seconds", &o->request_seconds},
                   {"header_seconds", &o->header_seconds},
                   {"body_seconds", &o->body_seconds},
                   {"idle_seconds", &o->idle_seconds}};
    const struct {
        const char *name;
        const char **text;
    } texts[] = {{"host", &o->host},
                 {"api_keys", &o->api_keys},
                 {"cors_origin", &o->cors_origin},
                 {"log_path", &o->log_path},
                 {"model_name", &o->model_name}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(name, numbers[i].name) == 0) {
            *numbers[i].number = atoi(value);
            return true;
        }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strcmp(name, texts[i].name) == 0) {
            *texts[i].text = value;
            return true;
        }
    if (strcmp(name, "port") == 0)
        o->port = (uint16_t)atoi(value);
    else if (strcmp(name, "max_body") == 0)
        o->max_body = (size_t)atoi(value);
    else if (strcmp(name, "log_prompts") == 0)
        o->log_prompts = atoi(value) != 0;
#ifdef QUIRE_STORE
    else if (strcmp(name, "store") == 0)
        return quire_store_open(&o->store, value, NULL) == QUIRE_OK;
    else if (strcmp(name, "tier") == 0)
        return quire_store_open_tiers(&o->store, &value, 1, NULL) == QUIRE_OK;
#endif
    else
        return false;
    return true;
}

int main(int argc, char **argv) {
    srv_cache cache = {"k8v4", fake_session_create()};
    if (!cache.session) {
        fprintf(stderr, "%s\n", quire_last_error());
        return 1;
    }
    srv_options options;
    srv_options_default(&options);
    options.model_name = "fake";
    options.caches = &cache;
    options.n_caches = 1;
    options.port = 0;
    bool ok = true;
    for (int i = 1; i < argc && ok; i++) {
        char *equals = strchr(argv[i], '=');
        if (equals)
            *equals = 0;
        ok = equals && set(&options, argv[i], equals + 1);
    }
    char why[256] = "an option is not known";
    ok = ok && srv_run(&options, why, sizeof why);
    if (!ok)
        fprintf(stderr, "%s\n", why);
#ifdef QUIRE_STORE
    quire_store_close(options.store);
#endif
    fake_session_free(cache.session);
    return !ok;
}
