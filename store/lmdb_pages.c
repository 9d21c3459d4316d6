/* Reads pages of an LMDB file, and checks each on its own. */
#include "store/lmdb_pages.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { MOST_KEY = 511, MOST_PAGE = 1 << 15 };

_Static_assert(sizeof(quire_page_head) == sizeof(size_t) + 8, "must match LMDB");
_Static_assert(sizeof(quire_page_tree) == 5 * sizeof(size_t) + 8, "must match LMDB");
_Static_assert(sizeof(quire_page_meta) == 4 * sizeof(size_t) + 8 + 2 * sizeof(quire_page_tree),
               "must match LMDB");

/* ------------------------------------------------------------------ reading */

quire_status quire__page_damaged(const quire_pages *p, size_t page, const char *why) {
    return quire__fail(
        QUIRE_E_CORRUPT,
        "page %zu of '%.120s/data.mdb' is damaged: %s. Remove the directory; its pages can be "
        "computed again",
        page, p->directory, why);
}

static quire_status read_at(const quire_pages *p, uint64_t offset, void *to, size_t n_bytes) {
    for (size_t done = 0; done < n_bytes;) {
        const ssize_t n =
            pread(p->fd, (uint8_t *)to + done, n_bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return quire__fail(QUIRE_E_IO, "'%.200s/data.mdb' cannot be read: %s", p->directory,
                               strerror(errno));
        if (n == 0)
            return quire__fail(QUIRE_E_TRUNCATED, "'%.200s/data.mdb' is cut off", p->directory);
        done += (size_t)n;
    }
    return QUIRE_OK;
}

quire_status quire__page_read_meta(const quire_pages *p, int which, quire_page_head *head,
                                   quire_page_meta *meta) {
    uint8_t bytes[sizeof *head + sizeof *meta];
    QUIRE_TRY(read_at(p, (uint64_t)which * p->page_bytes, bytes, sizeof bytes));
    memcpy(head, bytes, sizeof *head);
    memcpy(meta, bytes + sizeof *head, sizeof *meta);
    return QUIRE_OK;
}

quire_status quire__page_read(const quire_pages *p, size_t from, size_t page, void *to,
                              size_t n_bytes) {
    if (page < 2 || page > p->meta.last_page ||
        n_bytes > (p->meta.last_page + 1 - page) * p->page_bytes)
        return quire__page_damaged(p, from, "it refers to a page that does not exist");
    return read_at(p, (uint64_t)page * p->page_bytes, to, n_bytes);
}

/* ------------------------------------------------------------------ pages of a tree */

static uint16_t offset_of(const uint8_t *page, size_t i) {
    uint16_t offset;
    memcpy(&offset, page + sizeof(quire_page_head) + 2 * i, sizeof offset);
    return offset;
}

static quire_page_head head_of(const uint8_t *page) {
    quire_page_head head;
    memcpy(&head, page, sizeof head);
    return head;
}

bool quire__page_is_leaf(const uint8_t *page) { return head_of(page).flags == QUIRE_PAGE_LEAF; }

size_t quire__page_nodes(const uint8_t *page) {
    return (head_of(page).lower - sizeof(quire_page_head)) / 2;
}

quire_page_node quire__page_node(const uint8_t *page, size_t i) {
    const uint8_t *at = page + offset_of(page, i);
    uint32_t low;
    uint16_t flags, key_bytes;
    memcpy(&low, at, sizeof low);
    memcpy(&flags, at + 4, sizeof flags);
    memcpy(&key_bytes, at + 6, sizeof key_bytes);
    quire_page_node n = {.key = at + QUIRE_NODE_HEAD,
                         .data = at + QUIRE_NODE_HEAD + key_bytes,
                         .key_bytes = key_bytes};
    if (quire__page_is_leaf(page)) {
        n.flags = flags;
        n.data_bytes = low;
    } else {
        n.child = low;
#if SIZE_MAX > UINT32_MAX
        n.child |= (size_t)flags << 32;
#endif
    }
    return n;
}

/* Bytes that a node takes in its page. */
static size_t node_bytes(const quire_page_node *n, bool is_leaf) {
    const size_t data = !is_leaf ? 0 : n->flags & QUIRE_NODE_BIG ? sizeof(size_t) : n->data_bytes;
    return QUIRE_NODE_HEAD + n->key_bytes + data;
}

/* What is wrong with a page of a tree, or NULL. Nodes must fill the page from `upper` to its end
 * without gaps or overlaps, because LMDB moves them by their sizes. */
static const char *fault(const quire_pages *p, const uint8_t *page, size_t number) {
    const quire_page_head head = head_of(page);
    const bool is_leaf = head.flags == QUIRE_PAGE_LEAF;
    const size_t most_node = ((p->page_bytes - sizeof head) / 2 & ~(size_t)1) - 2;
    uint8_t taken[MOST_PAGE / 2]; /* one per two bytes */
    size_t total = 0;
    if (head.number != number)
        return "it has the number of another page";
    if (!is_leaf && head.flags != QUIRE_PAGE_BRANCH)
        return "it should belong to a tree";
    if (head.lower < sizeof head + (is_leaf ? 2 : 4) || head.lower % 2 || head.lower > head.upper ||
        head.upper > p->page_bytes)
        return "its bounds are impossible";
    memset(taken, 0, p->page_bytes / 2);
    for (size_t i = 0; i < quire__page_nodes(page); i++) {
        const size_t offset = offset_of(page, i);
        if (offset < head.upper || offset % 2 || offset + QUIRE_NODE_HEAD > p->page_bytes)
            return "a node lies outside of it";
        const quire_page_node n = quire__page_node(page, i);
        const size_t exact = node_bytes(&n, is_leaf), bytes = (exact + 1) & ~(size_t)1;
        if (bytes > p->page_bytes - offset || exact > most_node || n.key_bytes > MOST_KEY ||
            (n.key_bytes == 0 && (is_leaf || i > 0)))
            return "a node is too long, or empty";
        if (memchr(taken + offset / 2, 1, bytes / 2))
            return "two nodes overlap";
        memset(taken + offset / 2, 1, bytes / 2);
        total += bytes;
    }
    return total == p->page_bytes - head.upper ? NULL : "its nodes do not fill it";
}

quire_status quire__page_read_tree(const quire_pages *p, size_t from, size_t page, uint8_t *to) {
    QUIRE_TRY(quire__page_read(p, from, page, to, p->page_bytes));
    const char *why = fault(p, to, page);
    return why ? quire__page_damaged(p, page, why) : QUIRE_OK;
}

/* ------------------------------------------------------------------ overflow pages */

size_t quire__page_overflows(const quire_pages *p, size_t n_bytes) {
    return (sizeof(quire_page_head) + n_bytes + p->page_bytes - 1) / p->page_bytes;
}

quire_status quire__page_check_overflow(const quire_pages *p, size_t from, size_t page,
                                        size_t n_bytes, size_t *n_pages) {
    quire_page_head head;
    uint32_t n;
    QUIRE_TRY(quire__page_read(p, from, page, &head, sizeof head));
    memcpy(&n, (const uint8_t *)&head + offsetof(quire_page_head, lower), sizeof n);
    *n_pages = n;
    /* More pages than the value needs are fine: LMDB may have overwritten a longer value. */
    if (head.number != page || head.flags != QUIRE_PAGE_OVERFLOW ||
        n < quire__page_overflows(p, n_bytes) || n > p->meta.last_page + 1 - page)
        return quire__page_damaged(p, page, "it should be the first page of a value");
    return QUIRE_OK;
}
