# Sourced: the compilers as words, `cc` and `cxx`. $CC may be a path with spaces, or several words ("ccache gcc").
if command -v "${CC:-cc}" >/dev/null; then cc=("${CC:-cc}"); else read -ra cc <<<"$CC"; fi
if command -v "${CXX:-c++}" >/dev/null; then cxx=("${CXX:-c++}"); else read -ra cxx <<<"$CXX"; fi
