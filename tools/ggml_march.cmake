# Included at project() of llama.cpp (tools/build-llama --for MARCH): compiles ggml's arithmetic for QUIRE_MARCH, and nothing
# else. What runs when a program starts must run on any processor, so that it can say what a processor lacks.
if(NOT CMAKE_CURRENT_SOURCE_DIR STREQUAL CMAKE_SOURCE_DIR)
    return() # a project within
endif()
function(quire_set_march)
    if(TARGET ggml-cpu)
        target_compile_options(ggml-cpu PRIVATE -march=${QUIRE_MARCH})
    endif()
endfunction()
cmake_language(DEFER CALL quire_set_march)
