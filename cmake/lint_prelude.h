// Included first when clang 14 reads a file for clang-tidy (scripts/lint.sh).
// libstdc++ 12 makes std::vector constexpr in C++20, and clang then wants
// c10::IValue complete where libtorch 1.13's headers only declare it. With
// this, and with _GLIBCXX20_CONSTEXPR defined as nothing, containers are as
// they were in C++17, and so fmt's constexpr use of them has to be. GCC, which
// builds Brigade, needs none of it.
#pragma once

#include <type_traits>
#undef __cpp_lib_is_constant_evaluated

#pragma push_macro("_GLIBCXX_RELEASE")
#undef _GLIBCXX_RELEASE
#define _GLIBCXX_RELEASE 9
#include <fmt/core.h>
#pragma pop_macro("_GLIBCXX_RELEASE")
