// What ranks compare before they connect to one another.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "brigade/comm/start/start_meeting.h"
#include "brigade/launch/environment.h"
#include "brigade/launch/network.h"

namespace brigade {

// A value that must be the same on every rank.
struct StartFact {
  std::string name;    // "the config", as messages call it
  std::string value;   // short: a version, a digest
  std::string advice;  // what to do where it differs
  // What `value` is the digest of, by name: exchanged only where the values
  // differ, so that the message can name what does. Empty: nothing is named.
  std::map<std::string, std::string> entries = {};
};

struct StartFacts {
  std::vector<StartFact> facts;  // as many on each rank, in the same order
  // On rank 0: what every host must see as the same folder; it need not exist
  // yet. Empty: none.
  std::filesystem::path shared_folder;
};

// What one rank tells all others before they connect.
struct RankStart {
  std::string host;
  PeerAddress address;
  StartFacts facts;
};

// Every rank's host name, by rank. Collective. Throws the same ConfigError on
// every rank, naming rank, host and the entries that differ, where a fact
// differs from rank 0's, where ranks on several hosts have a loopback address
// for their peers, and where a host does not see the shared folder; and what
// StartMeeting::exchange() does. With several hosts, it makes and removes a
// file beside the shared folder.
std::vector<std::string> agree_on_start(
    StartMeeting& meeting,
    const LaunchEnvironment& environment,
    const RankStart& mine);

}  // namespace brigade
