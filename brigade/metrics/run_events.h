// What happened to a run besides its steps: events.jsonl in the run folder, one
// JSON object per line with "time" (Unix seconds) and "event":
//   start       where and with what the run began or went on: its id "run",
//               step, ranks, host, processor, versions; "origins" of the
//               config's values
//   message     what the program said: a slow rank, a skipped step, a loss
//               spike, a rejected checkpoint
//   checkpoint  a checkpoint is complete
//   end         the last step of this start; "stopped": before the run's last
//   failed      the error that ended this start, as "text"
// A start without either goes on, or was killed, or stalled.
#pragma once

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "brigade/files/line_file.h"
#include "brigade/json/parse.h"

namespace brigade {

class RunEvents {
 public:
  // Until open() the events wait.
  void open(const std::filesystem::path& path) { file_.open(path); }
  // `facts` is an object. Throws StorageError; the event then waits for the
  // next one.
  void write(const char* event, const nlohmann::ordered_json& facts) {
    nlohmann::ordered_json line;
    line["time"] = std::chrono::duration<double>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
    line["event"] = event;
    line.update(facts);
    file_.append(json_to_text(line));
  }

 private:
  LineFile file_;
};

}  // namespace brigade
