/* Parses policies: presets and "K:V" pairs. */
#include <string.h>

#include "codec/codec.h"

static const quire_preset_info PRESETS[] = {
#define PRESET(name, k, v, sinks)                                                                  \
    { name, {QUIRE_CODEC_##k, QUIRE_CODEC_##v}, sinks }
    PRESET("none", RAW, RAW, 0),   PRESET("k8v8", KC8, VT8, 4),       PRESET("k8v4", KC8, VT4, 4),
    PRESET("k4v4", KM4, VT4, 4),   PRESET("k4v3", KM4, VT3, 4),       PRESET("k3v3", KM3, VT3, 4),
    PRESET("k4v2", KM4, VT2, 4),   PRESET("tq4", TQ4, TQ4, 4),        PRESET("tq3", TQ3, TQ3, 4),
    PRESET("mlx8", A8, A8, 4),     PRESET("mlx4", A4, A4, 4),         PRESET("q8_0", Q8_0, Q8_0, 4),
    PRESET("q4_0", Q4_0, Q4_0, 4), PRESET("rot_k_tq4v", VT8, TQ4, 4),
#undef PRESET
};
enum { N_PRESETS = sizeof PRESETS / sizeof *PRESETS };

size_t quire_preset_count(void) { return N_PRESETS; }

quire_status quire_preset_at(size_t index, quire_preset_info *info) {
    if (!info)
        return quire__fail(QUIRE_E_INVALID, "info is NULL");
    if (index >= N_PRESETS)
        return quire__fail(QUIRE_E_INVALID, "there are %d presets: index %zu is out of range",
                           N_PRESETS, index);
    *info = PRESETS[index];
    return QUIRE_OK;
}

/* "a4g64" is "a4": a scale group of 64 may be written or left out. */
static bool same_name(const quire_codec_info *info, const char *name, size_t length) {
    const size_t n = strlen(info->name);
    if (memcmp(info->name, name, n < length ? n : length) != 0)
        return false;
    return length == n || (info->group == 64 && length == n + 3 && memcmp(name + n, "g64", 3) == 0);
}

static quire_status codec_by_name(const char *name, size_t length, quire_side side,
                                  quire_codec *codec) {
    quire_codec_info info;
    for (size_t i = 0; i < quire_codec_count(); i++) {
        quire_codec_at(i, &info);
        if (!same_name(&info, name, length))
            continue;
        if (!(side == QUIRE_SIDE_K ? info.for_k : info.for_v))
            return quire__fail(QUIRE_E_UNSUPPORTED, "codec %s does not serve %s", info.name,
                               side == QUIRE_SIDE_K ? "K" : "V");
        *codec = info.codec;
        return QUIRE_OK;
    }
    return quire__fail(QUIRE_E_UNKNOWN, "there is no codec named '%.*s'",
                       length < 64 ? (int)length : 64, name);
}

quire_status quire_policy_parse(const char *text, quire_policy *policy) {
    if (!text || !policy)
        return quire__fail(QUIRE_E_INVALID, "policy text or result is NULL");
    quire_policy p = {.windowed = {QUIRE_CODEC_RAW, QUIRE_CODEC_RAW},
                      .edge = {QUIRE_CODEC_RAW, QUIRE_CODEC_RAW}};
    const char *colon = strchr(text, ':');
    if (colon) {
        QUIRE_TRY(codec_by_name(text, (size_t)(colon - text), QUIRE_SIDE_K, &p.pair.k));
        QUIRE_TRY(codec_by_name(colon + 1, strlen(colon + 1), QUIRE_SIDE_V, &p.pair.v));
        p.sinks = quire__codec_is_raw(p.pair.k) && quire__codec_is_raw(p.pair.v) ? 0 : 4;
        *policy = p;
        return QUIRE_OK;
    }
    for (int i = 0; i < N_PRESETS; i++)
        if (strcmp(PRESETS[i].name, text) == 0) {
            p.pair = PRESETS[i].pair;
            p.sinks = PRESETS[i].sinks;
            *policy = p;
            return QUIRE_OK;
        }
    return quire__fail(QUIRE_E_UNKNOWN,
                       "'%.64s' is neither a preset (k8v4) nor a codec pair (kc8:vt4)", text);
}
