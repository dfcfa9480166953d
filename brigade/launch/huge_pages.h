// Pages of 2 MiB for the C allocator's memory, which libtorch's CPU tensors lie
// in: a step walks through hundreds of megabytes, and with pages of 4 KiB a
// twentieth of its time goes into looking them up, more in a virtual machine.
// glibc asks for them where a tunable says so when the process starts.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "brigade/launch/environment.h"

namespace brigade {

// The variable that asks for huge pages (glibc 2.35 and later; others ignore
// it), with the tunables that the user has set kept. Nothing where the user has
// decided about glibc.malloc.hugetlb.
std::optional<std::pair<std::string, std::string>> huge_page_variable(
    const GetEnv& getenv);

}  // namespace brigade
