/* auto_describe.c: describes the codecs of layers as short command-line options. */
#include "command.h"
#include "options/auto_kv.h"
#include "options/cache_args.h"
#include "output/report.h"

#include <stdlib.h>

static bool same(quire_pair a, quire_pair b) { return a.k == b.k && a.v == b.v; }

static bool is_raw(quire_pair pair) {
    return pair.k == QUIRE_CODEC_RAW && pair.v == QUIRE_CODEC_RAW;
}

/* The name of the preset with this pair if there is one, because users know presets. */
static cli_text name_of(quire_pair pair) {
    for (size_t i = 0; i < quire_preset_count(); i++) {
        quire_preset_info preset;
        cli_text name;
        if (quire_preset_at(i, &preset) == QUIRE_OK && same(preset.pair, pair)) {
            snprintf(name.text, sizeof name.text, "%s", preset.name);
            return name;
        }
    }
    return cli_pair_text(pair);
}

static bool is_of(const quire_layer *layer, bool windowed) {
    return layer->share == -1 && (layer->window > 0) == windowed;
}

static bool any_packed(const quire_model_info *info, const quire_pair *pairs) {
    for (int32_t i = 0; i < info->n_layers; i++)
        if (info->layers[i].share == -1 && !is_raw(pairs[i]))
            return true;
    return false;
}

/* The most frequent pair among layers with or without a window; raw:raw if there are none. packed:
 * prefer a quantized pair, because its preset has sinks. */
static quire_pair usual(const quire_model_info *info, const quire_pair *pairs, bool windowed,
                        bool packed) {
    quire_pair best = {QUIRE_CODEC_RAW, QUIRE_CODEC_RAW};
    int32_t most = 0;
    for (int32_t i = 0; i < info->n_layers; i++) {
        int32_t n = 0;
        for (int32_t j = 0; j < info->n_layers; j++)
            n += is_of(&info->layers[j], windowed) && same(pairs[i], pairs[j]);
        if (is_of(&info->layers[i], windowed) && n > most && !(packed && is_raw(pairs[i]))) {
            best = pairs[i];
            most = n;
        }
    }
    return best;
}

/* "0-2=k8v8,29=none": every layer whose pair is not the usual one of its kind. */
static void list_others(const quire_model_info *info, const quire_pair *pairs, quire_pair full,
                        quire_pair windowed, FILE *list) {
    for (int32_t i = 0, last; i < info->n_layers; i = last + 1) {
        last = i;
        if (info->layers[i].share != -1 ||
            same(pairs[i], info->layers[i].window > 0 ? windowed : full))
            continue;
        while (last + 1 < info->n_layers && info->layers[last + 1].share == -1 &&
               same(pairs[i], pairs[last + 1]) &&
               !same(pairs[i], info->layers[last + 1].window > 0 ? windowed : full))
            last++;
        fprintf(list, "%s%d", ftell(list) > 0 ? "," : "", (int)i);
        if (last > i)
            fprintf(list, "-%d", (int)last);
        fprintf(list, "=%s", name_of(pairs[i]).text);
    }
}

int cli_chosen_describe(const cli_model_args *args, const quire_model *model,
                        const quire_pair *pairs, cli_chosen *chosen) {
    quire_model_info info;
    quire_model_get_info(model, &info);
    const quire_pair full = usual(&info, pairs, false, true),
                     windowed = usual(&info, pairs, true, false);
    *chosen = (cli_chosen){.kv = name_of(full), .sinks = args->sinks};
    if (!is_raw(windowed))
        chosen->windowed = name_of(windowed);
    if (is_raw(full) && args->sinks < 0 && any_packed(&info, pairs))
        chosen->sinks = CLI_SINKS_USUAL; /* --kv none has no sinks */
    size_t n_bytes;
    FILE *list = open_memstream(&chosen->layers, &n_bytes);
    if (list)
        list_others(&info, pairs, full, windowed, list);
    if (!list || fclose(list) != 0)
        return cli_quire_error("cannot choose codecs", QUIRE_E_NOMEM, "out of memory");
    if (n_bytes == 0) {
        free(chosen->layers);
        chosen->layers = NULL;
    }
    return CLI_OK;
}

void cli_chosen_print(const cli_chosen *chosen, FILE *file) {
    fprintf(file, "--kv %s", chosen->kv.text);
    if (chosen->windowed.text[0])
        fprintf(file, " --kv-windowed %s", chosen->windowed.text);
    if (chosen->sinks >= 0)
        fprintf(file, " --sinks %d", (int)chosen->sinks);
    if (chosen->layers)
        fprintf(file, " --kv-layers %s", chosen->layers);
}
