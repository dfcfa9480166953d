#include "brigade/metrics/run_events.h"

#include <chrono>

namespace brigade {

void RunEvents::write(const char* event, nlohmann::ordered_json facts) {
  nlohmann::ordered_json line;
  line["time"] = std::chrono::duration<double>(
                     std::chrono::system_clock::now().time_since_epoch())
                     .count();
  line["event"] = event;
  line.update(facts);
  file_.append(line.dump(
      -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace brigade
