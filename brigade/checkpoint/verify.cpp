#include "brigade/checkpoint/verify.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "brigade/base/error.h"
#include "brigade/comm/agreement.h"
#include "brigade/run/find_damage.h"
#include "brigade/run/stored_checkpoint.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

std::string reason_of_part(
    const fs::path& directory,
    VerifyLevel level,
    int part,
    int parts,
    const HashProgress& on_progress) {
  try {
    // Opening it checks headers, and that files belong to this run and step.
    const StoredCheckpoint checkpoint(directory);
    return fmt::format(
        "{}",
        fmt::join(
            find_damage(
                directory,
                checkpoint.manifest(),
                level,
                part,
                parts,
                on_progress),
            "; "));
  } catch (const DataError& error) {
    return error.what();
  }
}

}  // namespace

std::string find_reason_to_reject(
    const fs::path& directory,
    VerifyLevel level,
    const HashProgress& on_progress) {
  return reason_of_part(directory, level, 0, 1, on_progress);
}

std::string find_reason_to_reject(
    const fs::path& directory,
    VerifyLevel level,
    Communicator& world,
    const HashProgress& on_progress) {
  const auto reasons = Agreement(world).texts(reason_of_part(
      directory, level, world.rank(), world.size(), on_progress));
  const auto found =
      std::find_if(reasons.begin(), reasons.end(), [](const std::string& text) {
        return !text.empty();
      });
  return found == reasons.end() ? std::string() : *found;
}

}  // namespace brigade
