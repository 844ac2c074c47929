# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Hosts that come, and whose names become known, minutes after the first. Takes as long."""

import time

import pods

NAMES_SECONDS = 100
HOST_SECONDS = 125


class LateHostsTest(pods.Pods):
    def test_the_second_pod_comes_minutes_late(self):
        names, start = self.pods_of_jobset()
        begin = time.monotonic()
        first = start(0)
        time.sleep(NAMES_SECONDS)
        self.assertIsNone(first.poll())
        self.publish(names)
        time.sleep(HOST_SECONDS - (time.monotonic() - begin))
        self.assertIsNone(first.poll())
        self.expect_a_job([first, start(1)])
