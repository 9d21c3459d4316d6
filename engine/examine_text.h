/* examine_text.h: what losses are measured on. Not the probe's text: orders of channels were fitted to that one, and look
 * better on it than on any other. Changing a word changes all reports: then EXAMINE_VERSION (examine.c) must change, too. */
#ifndef ENGINE_EXAMINE_TEXT_H
#define ENGINE_EXAMINE_TEXT_H

static const char EXAMINE_TEXT[] =
    "The canal between the two lakes was dug by hand in the last years of the eighteenth century. Eleven hundred men "
    "worked on it for six summers, and a third of them came from villages that no longer exist. When the railway "
    "reached the valley in 1867, the barges lost their trade within a decade, and the locks were left to rust. A "
    "society of former boatmen bought the upper reach for a symbolic price, planted poplars along the towpath, and "
    "kept a single lock in working order. Today the water carries rowing clubs, a floating library and, on Sundays, "
    "the slow procession of people who have nowhere else to be.\n\n"
    "Engineers who study the canal are mostly interested in its failures. The third embankment gave way twice, each "
    "time after a dry spring followed by sudden rain. Clay shrinks when it dries; the cracks fill with water, the "
    "pressure rises, and a wall that stood for fifty years is gone in an afternoon. The repair of 1803 used oak piles "
    "and packed gravel, which let the water through slowly instead of trying to hold it back. It has not moved "
    "since.\n\n"
    "\"You are late again,\" Marta said without looking up from the ledger.\n\"The ferry waited for the doctor,\" he "
    "answered. \"I could have swum, but then you would complain about the floor.\"\nShe closed the book and pushed a "
    "letter across the table. \"Read it before you take your coat off. They want the house by the end of the month, "
    "and they are not asking.\"\n\n"
    "To prepare the dough, mix 500 g of flour with 10 g of salt and a spoon of sugar. Dissolve the yeast in lukewarm "
    "water, pour it into the middle, and knead for ten minutes until the dough no longer sticks to your hands. Cover "
    "the bowl with a damp cloth and leave it in a warm place for an hour. Then divide it into eight pieces, roll each "
    "one out thinly, and bake them on a hot stone until they begin to brown at the edges.\n\n"
    "def mean_by_group(rows):\n    totals = {}\n    for name, value in rows:\n        count, sum_ = totals.get(name, "
    "(0, 0.0))\n        totals[name] = (count + 1, sum_ + value)\n    return {name: s / n for name, (n, s) in "
    "totals.items()}\n";

#endif
