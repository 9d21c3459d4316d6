#include "kernel_case.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "attn/softmax_state.h"
#include "base/element.h"
#include "codec/family.h"
#include "codec/layout.h"
#include "codec/hadamard.h"

/* ------------------------------------------------------------------ levels */

/* What is tested and what is not must be seen: a level that is missing passes every comparison. */
int kernel_levels(const kernel_level **levels) {
    enum { MOST_LEVELS = 16 };
    static kernel_level found[MOST_LEVELS];
    static int n;
    if (n == 0) {
        n = 1; /* the reference comes first, wherever it stands on the ladder */
        for (int i = 0; quire__kernel_level(i); i++) {
            const char *name = quire__kernel_level(i);
            const int at = strcmp(name, "ref") == 0 ? 0 : n;
            assert_true(at < MOST_LEVELS);
            const quire_status status = quire__kernels_init(&found[at].kernels, name);
            printf("kernels: %s %s\n", status == QUIRE_OK ? "testing" : "left out", name);
            if (status == QUIRE_E_UNSUPPORTED)
                continue; /* another machine's */
            assert_ok(status);
            found[at].name = name;
            n += at > 0;
        }
        fflush(stdout);
    }
    *levels = found;
    return n;
}

int codecs_of_side(bool is_v, quire_codec *codecs) {
    int n = 0;
    for (size_t i = 0; i < quire_codec_count(); i++) {
        quire_codec_info info;
        quire_codec_at(i, &info);
        if (is_v ? info.for_v : info.for_k)
            codecs[n++] = info.codec;
    }
    return n;
}

/* ------------------------------------------------------------------ a case */

static size_t state_rows(const kernel_case *c) {
    return (size_t)((case_heads(c) + QUIRE_STATE_ROWS - 1) / QUIRE_STATE_ROWS * QUIRE_STATE_ROWS);
}

static size_t n_tokens(const kernel_case *c) {
    return (size_t)(c->job.see.first_position + c->n_rows);
}

bool case_open(kernel_case *c, const case_shape *s, bool at_end) {
    *c = (kernel_case){.n_rows = s->n_rows, .n_group = s->n_group, .n_pages = s->n_pages};
    if (quire__format_init(&c->format, (quire_pair){s->k, s->v}, s->k_dim, s->v_dim, s->raw) !=
        QUIRE_OK)
        return false;
    snprintf(c->text, sizeof c->text, "%s:%s %d/%d, %d rows x %d heads, %d pages from %d",
             quire_codec_name(s->k), quire_codec_name(s->v), s->k_dim, s->v_dim, s->n_rows,
             s->n_group, s->n_pages, s->first_page);
    const size_t n = (size_t)case_heads(c), q_bytes = n * (size_t)s->k_dim * sizeof(float);
    for (int p = 0; p < s->n_pages; p++) {
        guarded_open(&c->record[p], c->format.bytes, QUIRE_RECORD_ALIGN, at_end);
        memset(c->record[p].data, 0, c->format.bytes);
        c->job.record[p] = c->record[p].data;
    }
    guarded_open(&c->q, q_bytes, 64, at_end);
    c->job.q = c->q.data;
    c->job.q_is_new = true;
    if (c->format.k.rotated) {
        guarded_open(&c->q_rotated, q_bytes, 64, at_end);
        c->job.q_rotated = c->q_rotated.data;
    }
    if (c->format.k.family == QUIRE_FAMILY_PROD) {
        guarded_open(&c->q_projected, q_bytes, 64, at_end);
        c->job.q_projected = c->q_projected.data;
    }
    guarded_open(&c->scratch, n * QUIRE_BLOCK_TOKENS * sizeof(float), 64, at_end);
    guarded_open(&c->m, state_rows(c) * sizeof(float), 16, at_end);
    guarded_open(&c->l, state_rows(c) * sizeof(float), 16, at_end);
    guarded_open(&c->o, state_rows(c) * (size_t)s->v_dim * sizeof(float), 64, at_end);
    c->job.format = &c->format;
    c->job.n_rows = s->n_rows;
    c->job.n_group = s->n_group;
    c->job.first_page = s->first_page;
    c->job.raw = s->raw;
    c->job.scratch = c->scratch.data;
    c->job.see.first_position = (s->first_page + s->n_pages) * QUIRE_PAGE_TOKENS;
    return true;
}

void case_close(kernel_case *c) {
    for (int p = 0; p < QUIRE_CHUNK_PAGES; p++)
        guarded_close(&c->record[p]);
    guarded *others[] = {&c->q,        &c->q_rotated, &c->q_projected, &c->alibi,   &c->mask,
                         &c->scratch,  &c->workspace, &c->m,           &c->l,       &c->o,
                         &c->run_k[0], &c->run_k[1],  &c->run_v[0],    &c->run_v[1]};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        guarded_close(others[i]);
}

void case_derive_queries(kernel_case *c) {
    const size_t dim = (size_t)c->format.k.dim, bytes = (size_t)case_heads(c) * dim * sizeof(float);
    if (!c->q_rotated.data)
        return;
    memcpy(c->q_rotated.data, c->q.data, bytes);
    for (int i = 0; i < case_heads(c); i++)
        quire__rotate((float *)c->q_rotated.data + (size_t)i * dim, (int)dim);
    if (!c->q_projected.data)
        return;
    memcpy(c->q_projected.data, c->q_rotated.data, bytes);
    for (int i = 0; i < case_heads(c); i++)
        quire__project((float *)c->q_projected.data + (size_t)i * dim, (int)dim);
}

void case_fill(kernel_case *c, rng *r) {
    const size_t nk = (size_t)(QUIRE_PAGE_TOKENS * c->format.k.dim),
                 nv = (size_t)(QUIRE_PAGE_TOKENS * c->format.v.dim);
    float *k = malloc(nk * sizeof *k), *v = malloc(nv * sizeof *v);
    for (int p = 0; p < c->n_pages; p++) {
        rng_fill(r, k, nk, 1);
        rng_fill(r, v, nv, 1);
        quire__page_encode(&c->format, k, v, 0, c->record[p].data);
    }
    free(k), free(v);
    rng_fill(r, c->q.data, (size_t)(case_heads(c) * c->format.k.dim),
             1.4f / sqrtf((float)c->format.k.dim));
    case_derive_queries(c);
}

void case_put_codes(kernel_case *c, int page, bool is_v, const uint8_t *codes,
                    const uint8_t *signs) {
    const quire_side_format *side = is_v ? &c->format.v : &c->format.k;
    uint8_t *record = c->record[page].data;
    memset(record + side->codes, 0, side->code_bytes);
    quire__side_pack(side, codes, record);
    if (signs) {
        memset(record + side->signs, 0, side->sign_bytes);
        quire__k_pack(1, 0, side->dim, signs, record + side->signs);
    }
}

void case_add_alibi(kernel_case *c, rng *r) {
    guarded_open(&c->alibi, (size_t)c->n_group * sizeof(float), sizeof(float), true);
    for (int h = 0; h < c->n_group; h++)
        ((float *)c->alibi.data)[h] = (float)rng_uniform(r) * 0.02f;
    c->job.see.alibi = c->alibi.data;
}

float *case_add_mask(kernel_case *c) {
    const size_t tokens = n_tokens(c), n = (size_t)case_heads(c) * tokens;
    guarded_open(&c->mask, n * sizeof(float), sizeof(float), true);
    memset(c->mask.data, 0, n * sizeof(float));
    c->job.see.mask = c->mask.data;
    c->job.see.mask_head_stride = tokens;
    c->job.see.mask_row_stride = tokens * (size_t)c->n_group;
    return c->mask.data;
}

void case_add_runs(kernel_case *c, rng *r, quire_type type, int n_sinks, int own_offset) {
    const int own = c->n_pages > 0 || n_sinks > 0 ? 5 * QUIRE_PAGE_TOKENS : 0;
    c->job.raw = type;
    c->job.see.first_position = own + own_offset;
    if (n_sinks)
        c->job.run[c->job.n_runs++] = (struct quire_raw_run){.first = 0, .count = n_sinks};
    c->job.run[c->job.n_runs++] =
        (struct quire_raw_run){.first = own, .count = own_offset + c->n_rows};
    for (int i = 0; i < c->job.n_runs; i++) {
        struct quire_raw_run *run = &c->job.run[i];
        for (int side = 0; side < 2; side++) {
            const size_t dim = (size_t)(side ? c->format.v.dim : c->format.k.dim),
                         n = (size_t)run->count * dim;
            guarded *g = side ? &c->run_v[i] : &c->run_k[i];
            guarded_open(g, n * quire__type_bytes(type), 32,
                         true); /* rows are multiples of 16 elements, no more */
            for (size_t j = 0; j < n; j++)
                quire__put_element(type, g->data, j, rng_normal(r));
            *(side ? &run->v : &run->k) = g->data;
        }
    }
}

/* ------------------------------------------------------------------ running it */

static const char *running_level;
static const kernel_case *running;

/* A trap names its case before cmocka (or the system) reports it. */
static void trapped(int number) {
    static const char says[] = "\ntouched memory beside a buffer: ";
    (void)!write(STDERR_FILENO, says, sizeof says - 1);
    (void)!write(STDERR_FILENO, running_level, strlen(running_level));
    (void)!write(STDERR_FILENO, ", ", 2);
    (void)!write(STDERR_FILENO, running->text, strlen(running->text));
    (void)!write(STDERR_FILENO, "\n", 1);
    signal(number, SIG_DFL);
    raise(number);
}

static void set_inputs_writable(const kernel_case *c, bool writable) {
    const guarded *inputs[] = {&c->q,        &c->q_rotated, &c->q_projected, &c->alibi,   &c->mask,
                               &c->run_k[0], &c->run_k[1],  &c->run_v[0],    &c->run_v[1]};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        guarded_writable(inputs[i], writable);
    for (int p = 0; p < QUIRE_CHUNK_PAGES; p++)
        guarded_writable(&c->record[p], writable);
}

static void check_outputs(const kernel_case *c, const char *level) {
    const struct {
        const guarded *g;
        const char *name;
    } outputs[] = {{&c->scratch, "scratch"},
                   {&c->workspace, "workspace"},
                   {&c->m, "m"},
                   {&c->l, "l"},
                   {&c->o, "o"}};
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        char what[224];
        snprintf(what, sizeof what, "%s, %s: %s", level, c->text, outputs[i].name);
        guarded_check(outputs[i].g, what);
    }
}

static size_t workspace_bytes_of(const kernel_case *c, size_t (*bytes)(int, int, int)) {
    return bytes(case_heads(c), c->format.k.dim, c->format.v.dim);
}

static void prepare(kernel_case *c, size_t workspace_bytes, const char *level) {
    guarded_close(&c->workspace);
    guarded_open(&c->workspace, workspace_bytes, 64, true);
    c->job.workspace = c->workspace.data;
    c->job.bytes_read = 0;
    guarded *outputs[] = {&c->scratch, &c->m, &c->l, &c->o};
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
        guarded_reset(outputs[i]);
    running = c;
    running_level = level;
    signal(SIGSEGV, trapped);
    signal(SIGBUS, trapped);
    set_inputs_writable(c, false);
}

static size_t output_bytes(const kernel_case *c) {
    return (size_t)case_heads(c) * (size_t)c->format.v.dim * sizeof(float);
}

static case_result copy_result(const kernel_case *c) {
    const size_t n = (size_t)case_heads(c);
    case_result r = {malloc(n * sizeof(float)), malloc(n * sizeof(float)), malloc(output_bytes(c))};
    memcpy(r.m, c->m.data, n * sizeof(float));
    memcpy(r.l, c->l.data, n * sizeof(float));
    memcpy(r.o, c->o.data, output_bytes(c));
    return r;
}

static case_result finish(kernel_case *c, const char *level) {
    set_inputs_writable(c, true);
    check_outputs(c, level);
    return copy_result(c);
}

static quire_state state_of(const kernel_case *c) {
    return (quire_state){c->m.data, c->l.data, c->o.data};
}

case_result case_attend(kernel_case *c, const kernel_level *level) {
    const quire_attend_kernel *kernel = quire__attend_kernel(&level->kernels, &c->format);
    const quire_state state = state_of(c);
    prepare(c, workspace_bytes_of(c, kernel->workspace_bytes), level->name);
    kernel->attend(&c->job, &state);
    if (case_heads(c) <= 16) { /* what a kernel kept of q serves as well */
        case_result first = copy_result(c);
        c->job.q_is_new = false;
        c->job.bytes_read = 0;
        kernel->attend(&c->job, &state);
        c->job.q_is_new = true;
        assert_memory_equal(first.o, c->o.data, output_bytes(c));
        result_free(&first);
    }
    size_t most = 0;
    for (int p = 0; p < QUIRE_CHUNK_PAGES; p++)
        most += c->job.record[p] ? c->format.bytes : 0;
    assert_in_range(c->job.bytes_read, 0, most);
    return finish(c, level->name);
}

case_result case_attend_chunks(kernel_case *c, const kernel_level *level,
                               const uint8_t *(*records)[QUIRE_CHUNK_PAGES], int n, bool gather) {
    const quire_attend_kernel *kernel = quire__attend_kernel(&level->kernels, &c->format);
    const int rows = case_heads(c), dim = c->format.v.dim;
    const quire_state part = state_of(c);
    prepare(c, workspace_bytes_of(c, kernel->workspace_bytes), level->name);
    if (gather && quire__gathers(kernel, rows)) {
        for (int i = 0; i < n; i++) {
            memcpy(c->job.record, records[i], sizeof c->job.record);
            c->job.q_is_new = i == 0;
            c->job.follows = i > 0;
            c->job.goes_on = i + 1 < n;
            kernel->attend(&c->job, &part);
        }
        c->job.follows = c->job.goes_on = false;
        c->job.q_is_new = true;
        return finish(c, level->name);
    }
    case_result total = copy_result(c);
    const quire_state state = {total.m, total.l, total.o};
    quire__states_empty(&state, rows);
    memset(total.o, 0, output_bytes(c));
    for (int i = 0; i < n; i++) {
        memcpy(c->job.record, records[i], sizeof c->job.record);
        kernel->attend(&c->job, &part);
        quire__states_merge(level->kernels.rows, &state, &part, rows, dim);
    }
    set_inputs_writable(c, true);
    check_outputs(c, level->name);
    return total;
}

case_result case_attend_raw(kernel_case *c, const kernel_level *level) {
    const quire_raw_kernel *kernel = level->kernels.raw;
    const quire_state state = state_of(c);
    prepare(c, workspace_bytes_of(c, kernel->workspace_bytes), level->name);
    kernel->attend(&c->job, &state);
    return finish(c, level->name);
}

void result_free(case_result *r) {
    free(r->m), free(r->l), free(r->o);
    *r = (case_result){0};
}
