"""What people run on datasets: inspect, verify, bench, report, doctor."""
