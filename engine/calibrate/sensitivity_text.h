/* sensitivity_text.h: what losses are measured on: a text that keeps coming back to what it
 * said, since that is what a cache is for. (On plain prose, which hardly looks back, SmolLM2
 * lost a third of what it does here.) Not the calibration text: orders of channels were fitted to
 * that one. Changing a word changes all reports: then SENSITIVITY_VERSION (sensitivity.c) must
 * change. */
#ifndef ENGINE_CALIBRATE_SENSITIVITY_TEXT_H
#define ENGINE_CALIBRATE_SENSITIVITY_TEXT_H

static const char SENSITIVITY_TEXT[] =
    "Minutes of the Harlow Bridge committee, 14 March. Present: Dr. Ines Calloway (chair), Tobias "
    "Renn, Farida Osei "
    "and "
    "Peter Quill. Dr. Calloway opened the meeting at 18:30. Tobias Renn reported that the survey "
    "had found 27 cracks "
    "in "
    "the north pier and 4 in the south pier, and that the repair would cost 86,400 euros. Farida "
    "Osei asked whether "
    "the "
    "north pier could be closed in April. Peter Quill thought that the ferry could carry the "
    "traffic, as it did in "
    "1997. "
    "The committee voted to close the north pier from 3 April to 21 May.\n\n"
    "| member | role | vote |\n|---|---|---|\n| Dr. Ines Calloway | chair | yes |\n| Tobias Renn | "
    "engineer | yes |\n"
    "| Farida Osei | treasurer | no |\n| Peter Quill | secretary | yes |\n\n"
    "Question: How many cracks did the survey find in the north pier, and what will the repair "
    "cost?\n"
    "Answer: The survey found 27 cracks in the north pier, and the repair will cost 86,400 euros.\n"
    "Question: Who reported on the survey, and who voted against closing the north pier?\n"
    "Answer: Tobias Renn reported on the survey, and Farida Osei, the treasurer, voted against "
    "it.\n\n"
    "Minutes of the Harlow Bridge committee, 11 April. Present: Dr. Ines Calloway (chair), Tobias "
    "Renn and Peter "
    "Quill; "
    "Farida Osei sent her apologies. Dr. Calloway opened the meeting at 18:30. Tobias Renn "
    "reported that the north "
    "pier "
    "had been closed on 3 April, that 19 of the 27 cracks in the north pier were repaired, and "
    "that 51,200 of the "
    "86,400 "
    "euros had been spent. Peter Quill reported that the ferry carried the traffic without "
    "delays.\n\n"
    "def repair_cost(pier, cracks):\n    cost = 0\n    for crack in cracks:\n        if crack.pier "
    "== pier:\n          "
    "  "
    "cost += crack.length * crack.price\n    return cost\n\ndef repair_days(pier, cracks):\n    "
    "days = 0\n    for "
    "crack "
    "in cracks:\n        if crack.pier == pier:\n            days += crack.days\n    return "
    "days\n\n"
    "[{\"pier\": \"north\", \"cracks\": 27, \"repaired\": 19, \"closed\": \"3 April\"},\n "
    "{\"pier\": \"south\", "
    "\"cracks\": 4, \"repaired\": 0, \"closed\": null}]\n";

#endif
