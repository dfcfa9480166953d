#include "brigade/metrics/run_events.h"

#include <fmt/format.h>

#include <chrono>

#include "brigade/base/error.h"

namespace brigade {

void RunEvents::open(const std::filesystem::path& path) {
  path_ = path;
  file_.open(path, std::ios::app);
  for (const std::string& line : waiting_)
    file_ << line;
  waiting_.clear();
  file_.flush();
  if (!file_)
    throw StorageError(
        fmt::format("[run_events] cannot write '{}'", path.string()));
}

void RunEvents::write(const char* event, nlohmann::ordered_json facts) {
  nlohmann::ordered_json line;
  line["time"] = std::chrono::duration<double>(
                     std::chrono::system_clock::now().time_since_epoch())
                     .count();
  line["event"] = event;
  line.update(facts);
  const std::string text =
      line.dump(
          -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
      "\n";
  if (!file_.is_open()) {
    waiting_.push_back(text);
    return;
  }
  file_ << text << std::flush;
  if (!file_)
    throw StorageError(fmt::format(
        "[run_events] cannot append to '{}': is the disk full?",
        path_.string()));
}

}  // namespace brigade
