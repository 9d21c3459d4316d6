/* Plans and launches of decode attention; decode.cuh has the kernel. */
#include "decode.h"

#include <cmath>
#include <cstdio>
#include <new>

#include "args.h"
#include "decode_any.h"
#include "fail.h"
#include "record.h"

using namespace quire_cuda;

struct quire_cuda_decode_plan {
    quire_cuda_decode_options options;
    const DecodeKernel *kernels[2]; /* plain, and with more than plain logits; NULL: decode_any */
    AnyRecord any;                  /* of decode_any */
    char name[64];
    int sms;
    int n_parts, item_heads; /* see DecodeParams */
    size_t record_bytes;
    size_t ml_at, tickets_at, workspace_bytes;
};

namespace quire_cuda {

/* What a kernel has beside its dynamic shared memory. */
constexpr int STATIC_SHARED = 128;

/* The first kernel for the shape that fits into `limit` bytes of shared memory; *known: whether
 * there is any. */
static const DecodeKernel *find_kernel(quire_pair pair, int dim, bool more, int heads, int limit,
                                       bool *known) {
    *known = false;
    for (const DecodeKernels &table :
         {decode_kernels_64, decode_kernels_80, decode_kernels_96, decode_kernels_128,
          decode_kernels_256, decode_kernels_more_64, decode_kernels_more_80,
          decode_kernels_more_96, decode_kernels_more_128, decode_kernels_more_256})
        for (int i = 0; i < table.n; i++) {
            const DecodeKernel &kernel = table.first[i];
            if (kernel.pair.k != pair.k || kernel.pair.v != pair.v || kernel.dim != dim ||
                kernel.more != more)
                continue;
            *known = true;
            if (kernel.shared_bytes(heads) <= limit)
                return &kernel;
        }
    return nullptr;
}

/* As many CTAs as multiprocessors, or a few less, so that a CTA has whole items or an equal part of
 * one where all items have the same length: then fewer results are merged, which is worth more than
 * the idle multiprocessors. */
static int choose_ctas(int n_items, int sms) {
    int ctas = sms;
    if (n_items < sms)
        ctas = sms / n_items * n_items;
    else
        while (n_items % ctas)
            ctas--;
    return 10 * ctas >= 9 * sms ? ctas : sms;
}

static quire_status check_options(const quire_cuda_decode_options &o) {
    if (o.struct_size != sizeof o)
        return fail(QUIRE_E_INVALID, "options were not set by quire_cuda_decode_options_default");
    QUIRE_CUDA_TRY(check_heads(o.n_heads, o.n_kv_heads));
    QUIRE_CUDA_TRY(check_types(o.raw, o.out));
    QUIRE_CUDA_TRY(check_logits(o.scale, o.softcap));
    QUIRE_CUDA_TRY(check_sight(o.sinks, o.window, o.keep));
    if (o.exact < 0 || o.exact > 128)
        return fail(QUIRE_E_INVALID, "exact %d: must be 0, or 1 to 128 parts", (int)o.exact);
    if (o.max_seqs < 1 || (int64_t)o.max_seqs * o.n_heads > 1 << 24)
        return fail(QUIRE_E_INVALID,
                    "max_seqs %d: must be at least 1, and at most 2^24 rows of heads",
                    (int)o.max_seqs);
    return QUIRE_OK;
}

static void size_workspace(quire_cuda_decode_plan &plan) {
    const quire_cuda_decode_options &o = plan.options;
    const size_t items = (size_t)o.max_seqs * o.n_kv_heads * plan.n_parts;
    const size_t slots = o.exact > 0 ? items * o.exact : 2 * (size_t)plan.sms;
    const size_t rows = slots * plan.item_heads;
    plan.ml_at = rows * o.v_dim * sizeof(float);
    plan.tickets_at = plan.ml_at + rows * sizeof(float2);
    plan.workspace_bytes = plan.tickets_at + items * sizeof(unsigned);
}

static quire_status make_plan(quire_cuda_decode_plan &plan, const quire_cuda_decode_options &o) {
    QUIRE_CUDA_TRY(check_options(o));
    plan.options = o;
    const int group = o.n_heads / o.n_kv_heads;
    plan.n_parts = (group + MAX_HEADS - 1) / MAX_HEADS;
    plan.item_heads = group < MAX_HEADS ? group : MAX_HEADS;
    bool known = false;
    if (o.k_dim == o.v_dim)
        find_kernel(o.pair, o.k_dim, false, plan.item_heads, 0, &known);
    if (!any_record(o.pair, o.k_dim, o.v_dim, o.raw, &plan.any))
        return fail(QUIRE_E_UNSUPPORTED,
                    "%s:%s with head sizes %d and %d: a codec is not for its side, or head sizes "
                    "are not multiples of 16 (and of its group) from 32 to 256",
                    codec_name(o.pair.k), codec_name(o.pair.v), (int)o.k_dim, (int)o.v_dim);
    plan.record_bytes = (size_t)plan.any.bytes;
    QUIRE_CUDA_TRY(quire_cuda_available());
    int device, limit;
    QUIRE_CUDA_TRY(check(cudaGetDevice(&device), "asking for the current device"));
    QUIRE_CUDA_TRY(check(cudaDeviceGetAttribute(&plan.sms, cudaDevAttrMultiProcessorCount, device),
                         "asking for the number of multiprocessors"));
    QUIRE_CUDA_TRY(shared_limit(&limit));
    limit -= STATIC_SHARED;
    if (!known) {
        plan.n_parts = 1;
        plan.item_heads = group;
        if (!plan.options.exact)
            plan.options.exact = ANY_PARTS;
        const int bytes = any_shared_bytes(plan.item_heads, plan.any);
        if (bytes > limit)
            return fail(QUIRE_E_UNSUPPORTED,
                        "%s:%s with head sizes %d and %d and %d query heads per KV head takes %d "
                        "bytes of shared memory: this GPU has %d",
                        codec_name(o.pair.k), codec_name(o.pair.v), (int)o.k_dim, (int)o.v_dim,
                        group, bytes, limit);
        QUIRE_CUDA_TRY(check(any_prepare(limit), "reserving shared memory"));
        snprintf(plan.name, sizeof plan.name, "%s:%s d%d d%d, kernel for all pairs",
                 codec_name(o.pair.k), codec_name(o.pair.v), (int)o.k_dim, (int)o.v_dim);
        size_workspace(plan);
        return QUIRE_OK;
    }
    for (int more = 0; more < 2; more++) {
        const DecodeKernel *kernel =
            find_kernel(o.pair, o.k_dim, more != 0, plan.item_heads, limit, &known);
        if (!kernel)
            return fail(QUIRE_E_UNSUPPORTED,
                        "no decode kernel for %s:%s of head size %d fits into %d bytes of shared "
                        "memory",
                        codec_name(o.pair.k), codec_name(o.pair.v), (int)o.k_dim, limit);
        QUIRE_CUDA_TRY(
            check(cudaFuncSetAttribute((const void *)kernel->run,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, limit),
                  "reserving shared memory"));
        plan.kernels[more] = kernel;
    }
    snprintf(plan.name, sizeof plan.name, "%s:%s d%d, %d warps x %d pages", codec_name(o.pair.k),
             codec_name(o.pair.v), (int)o.k_dim, plan.kernels[0]->warps, plan.kernels[0]->ring);
    size_workspace(plan);
    return QUIRE_OK;
}

static quire_status check_args(const quire_cuda_decode_plan &plan,
                               const quire_cuda_decode_args &a) {
    const quire_cuda_decode_options &o = plan.options;
    if (a.n_seqs < 0 || a.n_seqs > o.max_seqs)
        return fail(QUIRE_E_INVALID, "%d sequences: the plan has room for %d", (int)a.n_seqs,
                    (int)o.max_seqs);
    if (!a.q || !a.out || !a.lengths || !a.pages || !a.records.base || !a.workspace)
        return fail(QUIRE_E_INVALID, "q, out, lengths, pages, records or workspace is NULL");
    if (((uintptr_t)a.q | (uintptr_t)a.out | (uintptr_t)a.k_order) % 16)
        return fail(QUIRE_E_INVALID, "q, out and k_order must be aligned to 16 bytes");
    if ((uintptr_t)a.workspace % 256)
        return fail(QUIRE_E_INVALID, "workspace must be aligned to 256 bytes");
    QUIRE_CUDA_TRY(check_records(a.records, o.n_kv_heads, plan.record_bytes));
    if (is_mixed(o.pair.k) && !a.k_order)
        return fail(QUIRE_E_INVALID, "%s needs k_order", codec_name(o.pair.k));
    QUIRE_CUDA_TRY(check_rows(a.own, "the queries' own pages"));
    return o.sinks > 0 ? check_rows(a.sink, "sinks") : QUIRE_OK;
}

static DecodeParams make_params(const quire_cuda_decode_plan &plan,
                                const quire_cuda_decode_args &a) {
    const quire_cuda_decode_options &o = plan.options;
    DecodeParams p = {};
    p.n_seqs = a.n_seqs;
    p.n_items_per_seq = o.n_kv_heads * plan.n_parts;
    p.n_heads = o.n_heads;
    p.group = o.n_heads / o.n_kv_heads;
    p.n_parts = plan.n_parts;
    p.parts_inverse = inverse_of(p.n_parts);
    p.item_heads = plan.item_heads;
    p.exact = o.exact;
    p.sinks = o.sinks;
    p.window = o.window;
    p.keep = o.keep;
    p.softcap_log2 = o.softcap * LOG2_E;
    p.alibi = a.alibi;
    p.sink_logits = a.sink_logits;
    p.bf16 = o.raw == QUIRE_BF16;
    p.out_type = o.out;
    p.scale_log2 = (o.scale > 0 ? o.scale : 1.0f / sqrtf((float)o.k_dim)) * LOG2_E;
    p.q = (const uint16_t *)a.q;
    p.out = a.out;
    p.lse = a.lse;
    p.lengths = a.lengths;
    p.pages = a.pages;
    p.slots = a.slots;
    p.pages_stride = a.pages_stride;
    p.records = (const uint8_t *)a.records.base;
    p.page_stride = a.records.page_stride;
    p.head_stride = a.records.head_stride;
    p.split_pages = o.exact == 0 && a.n_seqs * p.n_items_per_seq < plan.sms;
    p.own = raw_rows(a.own);
    p.sink = raw_rows(a.sink);
    p.order = is_mixed(o.pair.k) ? a.k_order : nullptr;
    uint8_t *workspace = (uint8_t *)a.workspace;
    p.part_o = (float *)workspace;
    p.part_ml = (float2 *)(workspace + plan.ml_at);
    p.tickets = (unsigned *)(workspace + plan.tickets_at);
    return p;
}

} // namespace quire_cuda

extern "C" {

void quire_cuda_decode_options_default(quire_cuda_decode_options *options) {
    if (!options)
        return;
    *options = {};
    options->struct_size = sizeof *options;
    options->pair = {QUIRE_CODEC_KM4, QUIRE_CODEC_VT4};
    options->raw = QUIRE_F16;
    options->out = QUIRE_F32;
    options->sinks = 4;
    options->max_seqs = 64;
}

quire_status quire_cuda_decode_create(quire_cuda_decode_plan **plan,
                                      const quire_cuda_decode_options *options) {
    if (!plan || !options)
        return fail(QUIRE_E_INVALID, "plan or options is NULL");
    *plan = nullptr;
    quire_cuda_decode_plan *made = new (std::nothrow) quire_cuda_decode_plan();
    if (!made)
        return fail(QUIRE_E_NOMEM, "out of memory");
    const quire_status status = make_plan(*made, *options);
    if (status == QUIRE_OK)
        *plan = made;
    else
        delete made;
    return status;
}

void quire_cuda_decode_free(quire_cuda_decode_plan *plan) { delete plan; }
size_t quire_cuda_decode_workspace(const quire_cuda_decode_plan *plan) {
    return plan ? plan->workspace_bytes : 0;
}
const char *quire_cuda_decode_kernel(const quire_cuda_decode_plan *plan) {
    return plan ? plan->name : "";
}

quire_status quire_cuda_decode(const quire_cuda_decode_plan *plan,
                               const quire_cuda_decode_args *args, struct CUstream_st *stream) {
    if (!plan || !args)
        return fail(QUIRE_E_INVALID, "plan or args is NULL");
    QUIRE_CUDA_TRY(check_args(*plan, *args));
    if (args->n_seqs == 0)
        return QUIRE_OK;
    const DecodeParams params = make_params(*plan, *args);
    if (!plan->kernels[0])
        return check(any_launch({params, plan->any.k, plan->any.v},
                                any_shared_bytes(plan->item_heads, plan->any), stream),
                     "launching the decode kernel for all pairs");
    const bool more =
        params.window > 0 || params.softcap_log2 > 0 || params.alibi || params.sink_logits;
    const DecodeKernel &kernel = *plan->kernels[more];
    const int ctas = choose_ctas(args->n_seqs * params.n_items_per_seq, plan->sms);
    void *arguments[] = {(void *)&params};
    return check(cudaLaunchKernel((const void *)kernel.run, dim3((unsigned)ctas),
                                  dim3(32u * (unsigned)kernel.warps), arguments,
                                  (size_t)kernel.shared_bytes(plan->item_heads), stream),
                 "launching the decode kernel");
}
}
