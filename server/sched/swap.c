/* swap.c: sequences that make room for others. A sequence goes to a file, packed as it is, and
 * comes back bit for bit. If the disk does not take it, its text is computed again later. */
#include "sched/lane.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* In a directory that only this user can read. Its name is gone before this returns: whatever ends
 * the process, the system frees the file. NULL: the disk does not take it. */
static quire_file *save(const srv_lane *lane, const quire_seq *seq) {
    char directory[4000], path[4096];
    quire_file *file = NULL;
    const int n = snprintf(directory, sizeof directory, "%s/quire-swap-XXXXXX", lane->swap_dir);
    if (n < 0 || (size_t)n >= sizeof directory || !mkdtemp(directory))
        return NULL;
    snprintf(path, sizeof path, "%s/sequence.quire", directory);
    if (quire_seq_save(seq, path, NULL) == QUIRE_OK)
        quire_file_open(&file, path);
    unlink(path);
    rmdir(directory);
    return file;
}

void srv_swap_forget(srv_choice *choice) {
    quire_file_close(choice->swapped);
    choice->swapped = NULL;
}

/* The choice that came last, unless it is also the first. */
static srv_choice *find_victim(const srv_lane *lane) {
    srv_choice *victim = NULL;
    int32_t n = 0;
    srv_walk walk = {0};
    for (srv_choice *choice; (choice = srv_lane_next(lane, &walk));)
        if (choice->seq) {
            victim = choice;
            n++;
        }
    return n > 1 ? victim : NULL;
}

bool srv_swap_out(srv_lane *lane) {
    srv_choice *victim = find_victim(lane);
    if (!victim)
        return false;
    if (victim->is_decoding && lane->swap_dir)
        victim->swapped = save(lane, victim->seq);
    quire_seq_free(victim->seq);
    victim->seq = NULL;
    victim->state = SRV_SWAPPED;
    lane->is_full = true;
    lane->counts.swaps_out++;
    return true;
}

static bool load(srv_lane *lane, srv_choice *choice) {
    quire_load_options options;
    quire_load_options_default(&options);
    return quire_seq_load(quire_session_pool(lane->session), choice->swapped, &options,
                          &choice->seq) == QUIRE_OK;
}

bool srv_swap_in(srv_lane *lane, srv_choice *choice) {
    if (!srv_lane_make_room(lane, choice->n_text, 0))
        return false;
    const bool is_back = choice->swapped && load(lane, choice);
    srv_swap_forget(choice);
    if (!is_back && !srv_choice_begin(lane, choice))
        return false; /* nothing is lost: the text is computed again */
    choice->state = SRV_COMPUTING;
    lane->counts.swaps_in++;
    return true;
}
