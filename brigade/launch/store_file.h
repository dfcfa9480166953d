// The file of the rendezvous of ranks on one machine.
#pragma once

#include <filesystem>
#include <string>

#include "brigade/launch/environment.h"

namespace brigade {

// The same path for every rank of `job`, another one for every other job, in
// TMPDIR/brigade-<uid>, which is made. Throws ConfigError when that cannot be
// made or others can open it: the file decides whom the ranks connect to.
std::filesystem::path private_store_file(
    const GetEnv& getenv,
    const std::string& job);

// The parent process, by a name that no later process of this machine has.
std::string parent_identity();

}  // namespace brigade
