#!/bin/bash
errors=$(grep -c ' ERROR ' /var/log/shop/app.log)
days=$(grep ' ERROR ' /var/log/shop/app.log | cut -d' ' -f1 | sort -u | wc -l)
echo "{\"errors\": $errors, \"days\": $days}" > /app/answer.json
