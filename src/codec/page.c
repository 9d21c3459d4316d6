/* Page records outside any pool: the public functions of the codecs. */
#include "codec/codec.h"

static quire_status format_of(const quire_page_shape *shape, quire_format *format) {
    if (!shape)
        return quire__fail(QUIRE_E_INVALID, "page shape is NULL");
    return quire__format_init(format, shape->pair, shape->k_dim, shape->v_dim, shape->raw);
}

quire_status quire_page_bytes(const quire_page_shape *shape, size_t *bytes) {
    quire_format format;
    if (!bytes)
        return quire__fail(QUIRE_E_INVALID, "result is NULL");
    QUIRE_TRY(format_of(shape, &format));
    *bytes = format.bytes;
    return QUIRE_OK;
}

static quire_status check_rows(const quire_side_format *side, const float *rows, int skip) {
    const size_t dim = (size_t)side->dim, first = (size_t)skip * dim;
    size_t bad;
    if (quire__side_accepts(side, rows + first, QUIRE_PAGE_TOKENS * dim - first, &bad))
        return QUIRE_OK;
    bad += first;
    return quire__fail(QUIRE_E_VALUE,
                       "%s of token %zu, channel %zu is %g: codec %s holds finite values up to %g",
                       side->is_v ? "V" : "K", bad / dim, bad % dim, (double)rows[bad],
                       quire_codec_name(side->codec), (double)side->max_abs);
}

quire_status quire_page_encode(const quire_page_shape *shape, const float *k, const float *v,
                               int32_t skip, void *page) {
    quire_format format;
    QUIRE_TRY(format_of(shape, &format));
    if (!k || !v || !page)
        return quire__fail(QUIRE_E_INVALID, "rows or page is NULL");
    if (skip < 0 || skip > QUIRE_PAGE_TOKENS)
        return quire__fail(QUIRE_E_INVALID, "skip is %d: must be 0 to 64", (int)skip);
    QUIRE_TRY(check_rows(&format.k, k, skip));
    QUIRE_TRY(check_rows(&format.v, v, skip));
    quire__page_encode(&format, k, v, skip, page);
    return QUIRE_OK;
}

quire_status quire_page_decode(const quire_page_shape *shape, const void *page, float *k,
                               float *v) {
    quire_format format;
    QUIRE_TRY(format_of(shape, &format));
    if (!page)
        return quire__fail(QUIRE_E_INVALID, "page is NULL");
    if (k)
        quire__side_decode(&format.k, page, k);
    if (v)
        quire__side_decode(&format.v, page, v);
    return QUIRE_OK;
}
