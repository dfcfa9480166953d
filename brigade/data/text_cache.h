// What becomes of the tokens that runs keep of the texts that they were given
// (text_tokens.h): a folder for each text, until no run has begun to use it for
// kTextCacheKept.
#pragma once

#include <chrono>
#include <filesystem>

namespace brigade {

inline constexpr std::chrono::hours kTextCacheKept{30 * 24};

// A run begins to use the tokens of this folder.
void mark_used(const std::filesystem::path& tokens);

// Removes the folders of `cache`, finished or not, that are not used any more.
// Left are those in which a process tokenizes, whatever else is there, and what
// cannot be removed: that is no reason to end a run.
void remove_unused(const std::filesystem::path& cache);

}  // namespace brigade
