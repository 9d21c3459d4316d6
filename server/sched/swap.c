/* swap.c: sequences that make room for others. A sequence goes to a file, packed as it is, and
 * comes back bit for bit. If the disk does not take it, its text is computed again later. */
#include "sched/lane.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *path_of(const srv_lane *lane, const srv_choice *choice) {
    char path[4096];
    const int n = snprintf(path, sizeof path, "%s/lane%d-job%lld-choice%d.quire", lane->swap_dir,
                           (int)lane->index, (long long)choice->job->id, (int)choice->index);
    if (n < 0 || (size_t)n >= sizeof path)
        return NULL;
    return strdup(path);
}

void srv_swap_forget(srv_choice *choice) {
    if (choice->swap_path)
        remove(choice->swap_path);
    free(choice->swap_path);
    choice->swap_path = NULL;
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
    if (victim->is_decoding && lane->swap_dir) {
        victim->swap_path = path_of(lane, victim);
        if (victim->swap_path && quire_seq_save(victim->seq, victim->swap_path, NULL) != QUIRE_OK)
            srv_swap_forget(victim);
    }
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
    quire_file *file;
    if (quire_file_open(&file, choice->swap_path) != QUIRE_OK)
        return false;
    const quire_status status =
        quire_seq_load(quire_session_pool(lane->session), file, &options, &choice->seq);
    quire_file_close(file);
    return status == QUIRE_OK;
}

bool srv_swap_in(srv_lane *lane, srv_choice *choice) {
    if (!srv_lane_make_room(lane, choice->n_text, 0))
        return false;
    const bool is_back = choice->swap_path && load(lane, choice);
    srv_swap_forget(choice);
    if (!is_back && !srv_choice_begin(lane, choice))
        return false; /* nothing is lost: the text is computed again */
    choice->state = SRV_COMPUTING;
    lane->counts.swaps_in++;
    return true;
}
