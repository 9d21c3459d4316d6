/* calibration_text.h: some of everything that models read: prose, dialogue, numbers, code, markup,
 * other languages. Changing a word changes the orders of all models: then CALIBRATION_VERSION
 * (calibrate.c) must change as well. */
#ifndef ENGINE_CALIBRATE_CALIBRATION_TEXT_H
#define ENGINE_CALIBRATE_CALIBRATION_TEXT_H

static const char CALIBRATION_TEXT[] =
    "The harbour lay quiet under a thin layer of fog. Two fishermen mended their nets on the quay "
    "and spoke of the "
    "storm that "
    "had taken the old lighthouse in the winter of 1911, when the sea rose four metres in a single "
    "night. \"Nobody "
    "believed "
    "the keeper,\" said the elder of them, \"until the bell began to ring by itself.\" His son "
    "laughed, but he looked "
    "twice "
    "at the grey water before he answered.\n\n"
    "Table 3: rainfall by station (mm)\n| station | Jan | Feb | Mar |\n|---|---|---|---|\n| North "
    "Point | 112.4 | 87.0 "
    "| 95.3 |\n"
    "| Lower Mill | 64.8 | 71.2 | 58.9 |\nThe total for 2018 was 1,204 mm, about 7 % more than the "
    "mean of the ten "
    "years before.\n\n"
    "```c\nstatic int find(const int *sorted, int n, int wanted) {\n    int low = 0, high = n - "
    "1;\n    while (low <= "
    "high) {\n"
    "        int middle = low + (high - low) / 2;\n        if (sorted[middle] == wanted)\n         "
    "   return middle;\n"
    "        if (sorted[middle] < wanted) low = middle + 1; else high = middle - 1;\n    }\n    "
    "return -1; /* not "
    "there */\n}\n```\n\n"
    "Question: A train leaves at 9:40 and arrives at 13:05. How long is the journey?\nAnswer: It "
    "takes 3 hours and 25 "
    "minutes.\n\n"
    "Die Stadt liegt am Fluss, und im Sommer baden die Kinder unter der alten Br\xc3\xbc"
    "cke. Le march\xc3\xa9 ouvre \xc3\xa0 "
    "six heures du matin. La biblioteca est\xc3\xa1 cerrada los lunes.\n\n"
    "{\"name\": \"sensor-17\", \"values\": [0.25, -3.5, 18], \"unit\": \"kPa\", \"valid\": true}\n"
    "In mathematics, a group is a set together with an operation that combines any two of its "
    "elements to a third one, "
    "such that "
    "the operation is associative, an identity element exists, and every element has an inverse. "
    "Permission is granted "
    "to use, "
    "copy and distribute this text for any purpose, provided that the notice above appears in all "
    "copies.\n";

#endif
